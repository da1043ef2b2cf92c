"""Model repositories in the cloud: addresses and credentials (`address`), local copies of the models (`repository`), made of
content that all servers of a machine share (`content_cache`), the layout with `pointers`, and the managed repository in a
bucket, which the dashboard writes (`managed_bucket`).

It may import `repository.core` and `repository.files`. The server's `repositories` and the dashboard's `releases` call this
package. fsspec, and the package for a kind of store, are imported when an address first needs them.
"""
