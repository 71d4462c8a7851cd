"""The recorder's files: column contract, mmap'ed Arrow segments, the run directory and its reader.

`words`, `errors`, `template`, `ring`, `side` and `rundir` are the writing half and need the standard library only;
`schema`, `reader` and `make_template` need pyarrow. Nothing here knows torch.
"""
