"""Python environments that are made on demand, each from a lock file with hashes, so that the product itself needs no package
for work that few people do. A lock (locks) says which packages an environment has, and which of them it borrows from the
product. `environment` (making) makes it when it is first needed, and keeps it while somebody uses it. `remove_unused`
(removal) deletes the rest.

The room imports `shared` alone and needs no Django: the benchmarks make their environments here, too."""
