# Completion of hpcrun in fish. To install:
#   hpcrun completion fish > ~/.config/fish/completions/hpcrun.fish
function __hpcrun_complete
    set -l words (commandline --current-process --tokenize --cut-at-cursor)
    set -l token (commandline --current-token --cut-at-cursor)
    set -l line (commandline --current-process --cut-at-cursor)
    set -l found 0
    for row in (COMP_WORDS="$line" _HPCRUN_COMPLETE=fish_complete command $words[1] 2>/dev/null)
        set -l field (string split -m 2 \t -- $row)
        set found 1
        switch $field[1]
            case yaml
                __fish_complete_suffix .yaml .yml
                __fish_complete_directories $token ''
            case file
                set found 0
            case '*'
                printf '%s\t%s\n' $field[2] $field[3]
        end
    end
    if test $found = 0
        set -l head (string match -r -- '^.*=' $token)
        set -l rest (string replace -r -- '^.*=' '' $token)
        for path in (__fish_complete_path $rest)
            printf '%s%s\n' "$head" $path
        end
    end
end
complete --command hpcrun --no-files --keep-order --arguments '(__hpcrun_complete)'
