"""The language of bash, as far as sbatch scripts are written in it; nothing is executed.

In reading order: `shell_tokens` (words and operators), `shell_syntax` (commands and blocks),
`shell_values` (expansions, and what stays unknown) and `shell_conditions` (``[ … ]``).

To read another expansion, add it to ``Expander`` in `shell_values`.
"""
