# What a context's shell knows before its first cell. It is bash, interactive, because an interrupt then ends what runs
# and not the shell; it reads this, and then each cell, from its input. Messages are as in harness.py.
set +o history +H +m
PS1= PS2= PROMPT_COMMAND=
unset HISTFILE MAILCHECK
exec {__ringfence_output}>&1 {__ringfence_errors}>&2
__ringfence_tell() {
    builtin printf '\036%s.%04x%s' "$__ringfence_mark" "${#2}" "$2" >&"$1"
}
__ringfence_begin() {
    { local -; set +xv; } 2>/dev/null
    exec 1>&"$__ringfence_output" 2>&"$__ringfence_errors"
    __ringfence_tell "$__ringfence_output" "{\"type\":\"begun\",\"cell\":$1}"
    builtin trap - INT
}
__ringfence_end() {
    { local status=$? -; set +xv; builtin trap '' INT; } 2>/dev/null
    if [ "$status" != 0 ]; then
        __ringfence_tell "$__ringfence_output" \
            "{\"type\":\"error\",\"cell\":$1,\"name\":\"ExitCode\",\"value\":\"$status\",\"traceback\":\"\"}"
    fi
    __ringfence_tell "$__ringfence_errors" "{\"type\":\"end\",\"cell\":$1}"
    __ringfence_tell "$__ringfence_output" "{\"type\":\"end\",\"cell\":$1}"
}
trap '' INT
__ringfence_tell "$__ringfence_errors" '{"type":"ready"}'
__ringfence_tell "$__ringfence_output" '{"type":"ready"}'
