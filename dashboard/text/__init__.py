"""The installation as text: a folder of small files for git, written by `manage.py export` and applied by `manage.py apply`.
The room imports the rooms whose rows it writes as text, and those below. The two commands call it, and REST exports by it.

shapes     what an entry may look like, and the sentence with file and line for one that looks otherwise
yaml_text  YAML with the line of each value, and YAML that reads well in a diff
kinds      what a kind of text is: its file, its shape, how it is read from the database and written by the services
people, alerts, models, policies, examples, drift   the kinds; `table` lists them
folder     the files of a folder or of an archive; `plan` compares them with the installation, and `services` applies a plan
"""
