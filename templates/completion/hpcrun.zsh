#compdef hpcrun
# Completion of hpcrun in zsh. To install, add to ~/.zshrc, after compinit:
#   eval "$(hpcrun completion zsh)"
_hpcrun() {
    local kind value help files
    local -a whole part
    while IFS=$'\t' read -r kind value help; do
        value=${value//:/\\:}
        case $kind in
            part) part+=("$value${help:+:$help}") ;;
            plain) whole+=("$value${help:+:$help}") ;;
            *) files=$kind ;;
        esac
    done < <(COMP_WORDS="${(j: :)words[1,CURRENT-1]} ${compstate[quote]}$PREFIX" \
        _HPCRUN_COMPLETE=zsh_complete "$words[1]" 2>/dev/null)
    (( $#part )) && _describe -V -t keys key part -S ''
    (( $#whole )) && _describe -V -t values value whole
    [[ $files == yaml ]] && _files -g '*.(yaml|yml)'
    if [[ $files == file ]] || (( ! $#part && ! $#whole && ! $#files )); then
        [[ $PREFIX == *=* ]] && compset -P '*='
        _files
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _hpcrun "$@"
else
    compdef _hpcrun hpcrun
fi
