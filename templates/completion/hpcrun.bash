# Completion of hpcrun in bash. To install, add to ~/.bashrc:  eval "$(hpcrun completion bash)"
_hpcrun_completion() {
    local kind value help extension
    COMPREPLY=()
    while IFS=$'\t' read -r kind value help; do
        if [[ ${COMP_WORDS[COMP_CWORD]} != [\"\']* ]]; then
            value=${value//'<'/'\<'}
            value=${value//'>'/'\>'}
        fi
        case $kind in
            part) compopt -o nospace; COMPREPLY+=("$value") ;;
            plain) COMPREPLY+=("$value") ;;
            yaml)
                compopt -o filenames
                for extension in yaml yml; do
                    while IFS= read -r value; do COMPREPLY+=("$value"); done \
                        < <(compgen -f -X "!*.$extension" -- "$2")
                done
                while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -d -- "$2")
                ;;
        esac
    done < <(COMP_WORDS="${COMP_LINE:0:COMP_POINT}" COMP_CURRENT="$2" \
        _HPCRUN_COMPLETE=bash_complete "$1" 2>/dev/null)
}
# Where hpcrun has nothing to offer, bash completes as it does without it: files.
complete -o nosort -o bashdefault -o default -F _hpcrun_completion hpcrun
