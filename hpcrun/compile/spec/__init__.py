"""The schema of specs and cluster profiles, and the checks of their values.

In reading order: `schema` (data against the dataclasses of `hpcrun.state.spec`), `value_hints`
(what to write in place of what does not fit), `foreign_keys` (the same of keys that other programs
have), `compose` (the files of a spec and the command line
become one tree), `short_keys` (``lr`` for ``config.lr``),
`misreadings` (values that are read otherwise than they look), `profile_files` (finds cluster
profiles), `profile` (loads them), `checks` (values that must agree, beyond their types),
`objective` (whether less of it is better), `spec_text` (writes a spec), `typed_program` (makes one
of a command line), `reference` (writes docs/spec.md) and `json_schema` (the same for editors).

To add a check, add a line to ``AT_LEAST`` or a function that ``check`` calls, in `checks`;
to suggest a field for a name of another launcher, add it to ``_OTHER_NAMES`` in `schema`; a word of
one, ``_WORDS`` in `value_hints`; a key that becomes another line, `foreign_keys`.
"""
