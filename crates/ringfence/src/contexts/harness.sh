# What a context's shell knows before its first cell. It is bash, interactive, because an interrupt then ends what runs
# and not the shell; it reads this, and then each cell, from its input. Messages are as in harness.py.
set +o history +H +m
PS1= PS2= PROMPT_COMMAND=
unset HISTFILE MAILCHECK
exec {__ringfence_output}>&1 {__ringfence_errors}>&2
__ringfence_tell() {
    builtin printf '\036%s.%04x%s' "$__ringfence_mark" "${#2}" "$2" >&"$1"
}
# After `set -e` what fails ends the cell as an interrupt does, and not the shell.
__ringfence_fail() {
    __ringfence_failed=$?
    if [[ $- == *e* && $BASHPID == "$$" ]]; then
        builtin trap - INT
        builtin kill -INT "$$"
    fi
}
__ringfence_begin() {
    { local -; set +exv; } 2>/dev/null
    exec 1>&"$__ringfence_output" 2>&"$__ringfence_errors"
    __ringfence_tell "$__ringfence_output" "{\"type\":\"begun\",\"cell\":$1}"
    builtin trap - INT
}
__ringfence_end() {
    { local __ringfence_status=$? __ringfence_stopped=$- -; set +exv; builtin trap '' INT; } 2>/dev/null
    if [[ $__ringfence_status == 130 && $__ringfence_stopped == *e* ]]; then
        __ringfence_status=${__ringfence_failed:-130}
    fi
    __ringfence_failed=
    if [ "$__ringfence_status" != 0 ]; then
        __ringfence_tell "$__ringfence_output" \
            "{\"type\":\"error\",\"cell\":$1,\"name\":\"ExitCode\",\"value\":\"$__ringfence_status\",\"traceback\":\"\"}"
    fi
    __ringfence_tell "$__ringfence_errors" "{\"type\":\"end\",\"cell\":$1}"
    __ringfence_tell "$__ringfence_output" "{\"type\":\"end\",\"cell\":$1}"
}
set -E
trap '{ __ringfence_fail; } 2>/dev/null' ERR
trap '' INT
__ringfence_tell "$__ringfence_errors" '{"type":"ready"}'
__ringfence_tell "$__ringfence_output" '{"type":"ready"}'
