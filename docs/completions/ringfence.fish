# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_ringfence_global_optspecs
    string join \n v/verbose h/help V/version
end

function __fish_ringfence_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_ringfence_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_ringfence_using_subcommand
    set -l cmd (__fish_ringfence_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c ringfence -n "__fish_ringfence_needs_command" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_needs_command" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_needs_command" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "run" -d 'Runs one command behind a policy that is enforced or refused'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "code" -d 'Runs code behind a policy that is enforced or refused'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "up" -d 'Starts a sandbox that stays, and says how to enter it'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "exec" -d 'Runs one command in a sandbox that is up'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "enter" -d 'Opens a shell in a sandbox that is up: zsh, bash or sh'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "cp" -d 'Copies files and directories into a sandbox and out of it'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "ps" -d 'Lists the sandboxes that are up'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "logs" -d 'Prints the log of a sandbox: its guest\'s, and its monitor\'s'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "port" -d 'Forwards a port of this machine\'s loopback to a port inside a sandbox, until Ctrl-C'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "ssh" -d 'Enters a sandbox that is up by ssh, with the keys of the ssh-agent or of ~/.ssh'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "ssh-config" -d 'Prints how ssh, scp, sftp, rsync and editors reach a sandbox that is up, as ssh_config(5)'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "ssh-proxy" -d 'Connects standard input and output to the sshd of a sandbox, for ssh\'s ProxyCommand'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "stop" -d 'Ends sandboxes, and waits until nothing of them is left'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "inspect" -d 'Shows what a sandbox is, what holds, and what runs in it'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "image" -d 'Makes the images that containers are made from'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "mcp" -d 'Serves tools that work in a sandbox, for agents that speak the Model Context Protocol'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "doctor" -d 'Shows what each backend can enforce here, found by trying it, and what to do about the rest'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "wrap" -d 'Makes an executable that runs PROGRAM sandboxed, and prints its path'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "unwrap" -d 'Removes a wrapper that `ringfence wrap` made'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "config" -d 'Shows the settings, and what can be set'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "audit" -d 'Shows the records of earlier runs, and whether they are whole'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "egress" -d 'Shows what sandboxes reached or were denied, and the policy that this calls for'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "serve" -d 'Serves E2B\'s API, so that its SDKs run against sandboxes of this host'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "keys" -d 'Makes and revokes the keys that clients of `ringfence serve` show'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "completions" -d 'Prints the completions of a shell'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "attempt" -d 'Tries to break one promise and says how far it got; a proof runs it inside a sandbox'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "generate" -d 'Writes man pages, completions and references into a directory'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l fd -d 'Passes an open descriptor on under the same number; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l image -d 'What the container is made from; ringfence\'s own image when nothing says' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l pull -d 'When the image is fetched: always, missing or never' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l cap -d 'Capabilities that are not dropped, with commas between; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l backend -d 'How it is made to hold: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l workspace -d 'The directory that can be written, optionally at another path inside' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l read -d 'Lets PATH be read; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l write -d 'Lets PATH be read and written; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l hide -d 'Makes files of the workspace unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l protect -d 'Makes files of the workspace unchangeable, besides git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l net -d 'What can be reached: nothing (closed, the default), some hosts (allow), or all that the host can reach (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l allow -d 'Lets HOST be reached, and only such hosts; on ports 80 and 443 unless it names one; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l deny -d 'Keeps HOST from being reached, whatever is allowed; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l env -d 'Passes a variable on, or sets it; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l time -d 'Ends the run after this long: 30s, 2m, 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l memory -d 'Memory of all processes together: 512M, 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l cpus -d 'Processors\' worth of time: 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l processes -d 'Processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l output -d 'Output kept of each stream, with --json' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l tmp -d 'What /tmp can hold' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l disk -d 'What the workspace may grow by' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l policy -d 'A policy in TOML or JSON, under the flags' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l require -d 'Demands that a promise be fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l allow-weaker -d 'Accepts that a promise be weaker than written, or absent; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l allow-workspace -d 'Lets DIR hold workspaces although a rule forbids it; `serve` keeps those of its sandboxes in a state directory' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -s C -l directory -d 'Starts in DIR, as if called there' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l dry-run -d 'Prints the plan instead of running'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l json -d 'Captures the output and prints a result object'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l container -d 'A container to develop in, on podman or else docker: it has the host\'s network unless --net says otherwise'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l transparent -d 'Lets programs that know of no proxy reach the allowed hosts too'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l observe -d 'Lets every public host be reached, and records which'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l for-server -d 'Starts a sandbox for a client of `serve`: the files of its workspace are a stranger\'s, `ringfence.toml` among them, and `stop --all` leaves it to its client'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -s l -l language -d 'What the code is written in; told by the file\'s name when absent' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l block-imports -d 'What becomes of Python code that imports what code.imports lists: off, warn or block. It is lint: it sees what is written plainly, and isolates nothing' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l image -d 'What the container is made from; ringfence\'s own image when nothing says' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l pull -d 'When the image is fetched: always, missing or never' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l cap -d 'Capabilities that are not dropped, with commas between; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l backend -d 'How it is made to hold: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l workspace -d 'The directory that can be written, optionally at another path inside' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l read -d 'Lets PATH be read; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l write -d 'Lets PATH be read and written; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l hide -d 'Makes files of the workspace unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l protect -d 'Makes files of the workspace unchangeable, besides git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l net -d 'What can be reached: nothing (closed, the default), some hosts (allow), or all that the host can reach (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l allow -d 'Lets HOST be reached, and only such hosts; on ports 80 and 443 unless it names one; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l deny -d 'Keeps HOST from being reached, whatever is allowed; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l env -d 'Passes a variable on, or sets it; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l time -d 'Ends the run after this long: 30s, 2m, 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l memory -d 'Memory of all processes together: 512M, 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l cpus -d 'Processors\' worth of time: 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l processes -d 'Processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l output -d 'Output kept of each stream, with --json' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l tmp -d 'What /tmp can hold' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l disk -d 'What the workspace may grow by' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l policy -d 'A policy in TOML or JSON, under the flags' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l require -d 'Demands that a promise be fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l allow-weaker -d 'Accepts that a promise be weaker than written, or absent; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l allow-workspace -d 'Lets DIR hold workspaces although a rule forbids it; `serve` keeps those of its sandboxes in a state directory' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -s C -l directory -d 'Starts in DIR, as if called there' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l json -d 'Captures the output and prints a result object'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l container -d 'A container to develop in, on podman or else docker: it has the host\'s network unless --net says otherwise'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l transparent -d 'Lets programs that know of no proxy reach the allowed hosts too'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l observe -d 'Lets every public host be reached, and records which'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l for-server -d 'Starts a sandbox for a client of `serve`: the files of its workspace are a stranger\'s, `ringfence.toml` among them, and `stop --all` leaves it to its client'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l lease -d 'How long it may stay: 30m, 8h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l image -d 'What the container is made from; ringfence\'s own image when nothing says' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l pull -d 'When the image is fetched: always, missing or never' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l cap -d 'Capabilities that are not dropped, with commas between; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l backend -d 'How it is made to hold: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l workspace -d 'The directory that can be written, optionally at another path inside' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l read -d 'Lets PATH be read; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l write -d 'Lets PATH be read and written; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l hide -d 'Makes files of the workspace unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l protect -d 'Makes files of the workspace unchangeable, besides git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l net -d 'What can be reached: nothing (closed, the default), some hosts (allow), or all that the host can reach (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l allow -d 'Lets HOST be reached, and only such hosts; on ports 80 and 443 unless it names one; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l deny -d 'Keeps HOST from being reached, whatever is allowed; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l env -d 'Passes a variable on, or sets it; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l time -d 'Ends the run after this long: 30s, 2m, 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l memory -d 'Memory of all processes together: 512M, 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l cpus -d 'Processors\' worth of time: 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l processes -d 'Processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l output -d 'Output kept of each stream, with --json' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l tmp -d 'What /tmp can hold' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l disk -d 'What the workspace may grow by' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l policy -d 'A policy in TOML or JSON, under the flags' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l require -d 'Demands that a promise be fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l allow-weaker -d 'Accepts that a promise be weaker than written, or absent; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l allow-workspace -d 'Lets DIR hold workspaces although a rule forbids it; `serve` keeps those of its sandboxes in a state directory' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -s C -l directory -d 'Starts in DIR, as if called there' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l replace -d 'Stops the sandbox of that name first, if there is one'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l json -d 'Prints what is written down of it as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l monitor -d 'Keeps the sandbox; its caller waits for the answer on standard output'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l proxy -d 'Puts the proxy of the allowed hosts in a container of its own, in a network that other containers can join'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l container -d 'A container to develop in, on podman or else docker: it has the host\'s network unless --net says otherwise'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l transparent -d 'Lets programs that know of no proxy reach the allowed hosts too'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l observe -d 'Lets every public host be reached, and records which'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l for-server -d 'Starts a sandbox for a client of `serve`: the files of its workspace are a stranger\'s, `ringfence.toml` among them, and `stop --all` leaves it to its client'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -l time -d 'Ends the command after this long: 30s, 2m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -l env -d 'Passes a variable on, or sets it; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -s C -l directory -d 'Starts in DIR inside, instead of the workspace' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -s t -l tty -d 'Gives the command a terminal of its own'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -l json -d 'Captures the output and prints a result object'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand enter" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand enter" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand enter" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand cp" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand cp" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand cp" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand ps" -l json -d 'Prints JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand ps" -l names -d 'Prints names alone, for completions'
complete -c ringfence -n "__fish_ringfence_using_subcommand ps" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand ps" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand ps" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand logs" -s f -l follow -d 'Goes on printing until the sandbox ends'
complete -c ringfence -n "__fish_ringfence_using_subcommand logs" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand logs" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand logs" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand port" -l to -d 'The address here' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand port" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand port" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand port" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh" -s A -l forward-agent -d 'Lets programs inside use the ssh-agent as long as this session lasts'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-config" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-config" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-config" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-proxy" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-proxy" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-proxy" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand stop" -l all -d 'All that were started by `ringfence up`; those of clients of `ringfence serve` are left'
complete -c ringfence -n "__fish_ringfence_using_subcommand stop" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand stop" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand stop" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand inspect" -l json -d 'Prints JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand inspect" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand inspect" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand inspect" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and not __fish_seen_subcommand_from build" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and not __fish_seen_subcommand_from build" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and not __fish_seen_subcommand_from build" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and not __fish_seen_subcommand_from build" -f -a "build" -d 'Builds the default image of `ringfence up --container`, or another one, and prints its name'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -l tag -d 'What the image is called' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -l file -d 'Another Containerfile' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -l backend -d 'The engine that builds it: podman, or else docker' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l print-config -d 'Prints what to paste into the settings of claude, codex, cursor or vscode, with the other flags that are given' -r -f -a "claude\t''
codex\t''
cursor\t''
vscode\t''"
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l sandbox -d 'Works in the sandbox of that name, which `ringfence up` started, and leaves it up' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l lease -d 'How long a client\'s sandbox may stay: 30m, 8h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l listen -d 'Serves many clients, by HTTP at this address: `127.0.0.1:3001`; port 0 is any that is free' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l token-file -d 'A file with the token that clients show; without one, RINGFENCE_MCP_TOKEN holds it. Needed beyond loopback' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l host -d 'A name that clients call this server by, besides its address; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l idle -d 'Takes a client that says nothing for so long, and waits for no answer, to be gone; 15m when absent' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l clients -d 'How many clients there can be at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l image -d 'What the container is made from; ringfence\'s own image when nothing says' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l pull -d 'When the image is fetched: always, missing or never' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l cap -d 'Capabilities that are not dropped, with commas between; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l backend -d 'How it is made to hold: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l workspace -d 'The directory that can be written, optionally at another path inside' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l read -d 'Lets PATH be read; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l write -d 'Lets PATH be read and written; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l hide -d 'Makes files of the workspace unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l protect -d 'Makes files of the workspace unchangeable, besides git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l net -d 'What can be reached: nothing (closed, the default), some hosts (allow), or all that the host can reach (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l allow -d 'Lets HOST be reached, and only such hosts; on ports 80 and 443 unless it names one; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l deny -d 'Keeps HOST from being reached, whatever is allowed; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l env -d 'Passes a variable on, or sets it; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l time -d 'Ends the run after this long: 30s, 2m, 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l memory -d 'Memory of all processes together: 512M, 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l cpus -d 'Processors\' worth of time: 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l processes -d 'Processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l output -d 'Output kept of each stream, with --json' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l tmp -d 'What /tmp can hold' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l disk -d 'What the workspace may grow by' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l policy -d 'A policy in TOML or JSON, under the flags' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l require -d 'Demands that a promise be fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l allow-weaker -d 'Accepts that a promise be weaker than written, or absent; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l allow-workspace -d 'Lets DIR hold workspaces although a rule forbids it; `serve` keeps those of its sandboxes in a state directory' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -s C -l directory -d 'Starts in DIR, as if called there' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l container -d 'A container to develop in, on podman or else docker: it has the host\'s network unless --net says otherwise'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l transparent -d 'Lets programs that know of no proxy reach the allowed hosts too'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l observe -d 'Lets every public host be reached, and records which'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l for-server -d 'Starts a sandbox for a client of `serve`: the files of its workspace are a stranger\'s, `ringfence.toml` among them, and `stop --all` leaves it to its client'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l certificate -d 'Keeps what was proved, as JSON' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l backend -d 'How it is made to hold: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l workspace -d 'The directory that can be written, optionally at another path inside' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l read -d 'Lets PATH be read; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l write -d 'Lets PATH be read and written; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l hide -d 'Makes files of the workspace unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l protect -d 'Makes files of the workspace unchangeable, besides git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l net -d 'What can be reached: nothing (closed, the default), some hosts (allow), or all that the host can reach (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l allow -d 'Lets HOST be reached, and only such hosts; on ports 80 and 443 unless it names one; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l deny -d 'Keeps HOST from being reached, whatever is allowed; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l env -d 'Passes a variable on, or sets it; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l time -d 'Ends the run after this long: 30s, 2m, 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l memory -d 'Memory of all processes together: 512M, 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l cpus -d 'Processors\' worth of time: 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l processes -d 'Processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l output -d 'Output kept of each stream, with --json' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l tmp -d 'What /tmp can hold' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l disk -d 'What the workspace may grow by' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l policy -d 'A policy in TOML or JSON, under the flags' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l require -d 'Demands that a promise be fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l allow-weaker -d 'Accepts that a promise be weaker than written, or absent; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l allow-workspace -d 'Lets DIR hold workspaces although a rule forbids it; `serve` keeps those of its sandboxes in a state directory' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -s C -l directory -d 'Starts in DIR, as if called there' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l image -d 'What the container is made from; ringfence\'s own image when nothing says' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l pull -d 'When the image is fetched: always, missing or never' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l cap -d 'Capabilities that are not dropped, with commas between; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l prove -d 'Tries to break every promise in real sandboxes of the policy; exits with 1 if one that is claimed breaks'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l json -d 'Prints an object: the findings, or with --prove the certificate'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l transparent -d 'Lets programs that know of no proxy reach the allowed hosts too'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l observe -d 'Lets every public host be reached, and records which'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l for-server -d 'Starts a sandbox for a client of `serve`: the files of its workspace are a stranger\'s, `ringfence.toml` among them, and `stop --all` leaves it to its client'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l container -d 'A container to develop in, on podman or else docker: it has the host\'s network unless --net says otherwise'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l backend -d 'How it is made to hold: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l workspace -d 'The directory that can be written, optionally at another path inside' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l read -d 'Lets PATH be read; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l write -d 'Lets PATH be read and written; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l hide -d 'Makes files of the workspace unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l protect -d 'Makes files of the workspace unchangeable, besides git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l net -d 'What can be reached: nothing (closed, the default), some hosts (allow), or all that the host can reach (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l allow -d 'Lets HOST be reached, and only such hosts; on ports 80 and 443 unless it names one; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l deny -d 'Keeps HOST from being reached, whatever is allowed; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l env -d 'Passes a variable on, or sets it; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l time -d 'Ends the run after this long: 30s, 2m, 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l memory -d 'Memory of all processes together: 512M, 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l cpus -d 'Processors\' worth of time: 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l processes -d 'Processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l output -d 'Output kept of each stream, with --json' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l tmp -d 'What /tmp can hold' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l disk -d 'What the workspace may grow by' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l policy -d 'A policy in TOML or JSON, under the flags' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l require -d 'Demands that a promise be fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l allow-weaker -d 'Accepts that a promise be weaker than written, or absent; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l allow-workspace -d 'Lets DIR hold workspaces although a rule forbids it; `serve` keeps those of its sandboxes in a state directory' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -s C -l directory -d 'Starts in DIR, as if called there' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l transparent -d 'Lets programs that know of no proxy reach the allowed hosts too'
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l observe -d 'Lets every public host be reached, and records which'
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l for-server -d 'Starts a sandbox for a client of `serve`: the files of its workspace are a stranger\'s, `ringfence.toml` among them, and `stop --all` leaves it to its client'
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand unwrap" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand unwrap" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand unwrap" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and not __fish_seen_subcommand_from explain schema" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and not __fish_seen_subcommand_from explain schema" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and not __fish_seen_subcommand_from explain schema" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and not __fish_seen_subcommand_from explain schema" -f -a "explain" -d 'Prints every effective value with its source'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and not __fish_seen_subcommand_from explain schema" -f -a "schema" -d 'Prints the JSON Schema of a configuration file'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l backend -d 'How it is made to hold: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l workspace -d 'The directory that can be written, optionally at another path inside' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l read -d 'Lets PATH be read; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l write -d 'Lets PATH be read and written; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l hide -d 'Makes files of the workspace unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l protect -d 'Makes files of the workspace unchangeable, besides git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l net -d 'What can be reached: nothing (closed, the default), some hosts (allow), or all that the host can reach (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l allow -d 'Lets HOST be reached, and only such hosts; on ports 80 and 443 unless it names one; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l deny -d 'Keeps HOST from being reached, whatever is allowed; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l env -d 'Passes a variable on, or sets it; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l time -d 'Ends the run after this long: 30s, 2m, 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l memory -d 'Memory of all processes together: 512M, 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l cpus -d 'Processors\' worth of time: 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l processes -d 'Processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l output -d 'Output kept of each stream, with --json' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l tmp -d 'What /tmp can hold' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l disk -d 'What the workspace may grow by' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l policy -d 'A policy in TOML or JSON, under the flags' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l require -d 'Demands that a promise be fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l allow-weaker -d 'Accepts that a promise be weaker than written, or absent; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l allow-workspace -d 'Lets DIR hold workspaces although a rule forbids it; `serve` keeps those of its sandboxes in a state directory' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -s C -l directory -d 'Starts in DIR, as if called there' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l json -d 'Prints a list of objects'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l transparent -d 'Lets programs that know of no proxy reach the allowed hosts too'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l observe -d 'Lets every public host be reached, and records which'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l for-server -d 'Starts a sandbox for a client of `serve`: the files of its workspace are a stranger\'s, `ringfence.toml` among them, and `stop --all` leaves it to its client'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from schema" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from schema" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from schema" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -l dir -d 'Where the records are, instead of where the settings say' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -l json -d 'Prints JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -f -a "list" -d 'Lists the records, oldest first'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -f -a "show" -d 'Prints one record'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -f -a "verify" -d 'Checks that no record was altered, added or removed; exits with 1 if one was'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from list" -l dir -d 'Where the records are, instead of where the settings say' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from list" -l json -d 'Prints JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from list" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from list" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from show" -l dir -d 'Where the records are, instead of where the settings say' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from show" -l json -d 'Prints JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from show" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from show" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from verify" -l dir -d 'Where the records are, instead of where the settings say' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from verify" -l json -d 'Prints JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from verify" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from verify" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from verify" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -l sandbox -d 'Of one sandbox that stays' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -l since -d 'No older than this: 10m, 2h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -l all -d 'Of every workspace, not only of this directory\'s'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -l json -d 'Prints JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -f -a "log" -d 'Lists what was denied, and what was let out under --observe, oldest first'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -f -a "suggest" -d 'Prints the least policy that would have allowed all of it'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -f -a "serve" -d 'Is the proxy of a sandbox, in a container of its own'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -l sandbox -d 'Of one sandbox that stays' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -l since -d 'No older than this: 10m, 2h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -l all -d 'Of every workspace, not only of this directory\'s'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -l json -d 'Prints JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -l sandbox -d 'Of one sandbox that stays' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -l since -d 'No older than this: 10m, 2h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -l all -d 'Of every workspace, not only of this directory\'s'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -l json -d 'Prints JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -l sandbox -d 'Of one sandbox that stays' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -l since -d 'No older than this: 10m, 2h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -l all -d 'Of every workspace, not only of this directory\'s'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -l json -d 'Prints JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -l listen -d 'Where it listens; port 0 is any that is free' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -l config -d 'The server\'s settings, in TOML' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -l tls-cert -d 'Speaks TLS with this certificate, in PEM' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -l tls-key -d 'The key of that certificate, in PEM' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -l tls -d 'Speaks TLS, with a certificate for *.sbx.localhost that is made on the first start'
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -f -a "create" -d 'Makes a key and prints it: it is told this once, and only its hash is kept'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -f -a "list" -d 'Lists the keys by what may be told of them'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -f -a "revoke" -d 'Makes keys invalid, at once. Their sandboxes stay until their time is over, their snapshots until a server starts'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -l sandboxes -d 'Sandboxes at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -l per-minute -d 'Sandboxes that it may start in a minute' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -l snapshots -d 'Snapshots that it may keep; 20 when nothing is said' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -l longest -d 'How long a sandbox may stay at most, from its start: 30m, 8h; a day when nothing is said' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -l cpu-per-day -d 'The time on processors that its sandboxes may use in a day, which begins at midnight, UTC: 30m, 8h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from list" -l json -d 'Prints JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from list" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from list" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from revoke" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from revoke" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand completions" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand completions" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand completions" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand attempt" -l context -d 'What is to be found on the host, in JSON' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand attempt" -l mark -d 'Tells this process from others in a list of processes' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand attempt" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand attempt" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand attempt" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand generate" -s v -l verbose -d 'Says more: once for what happens, twice for why'
complete -c ringfence -n "__fish_ringfence_using_subcommand generate" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand generate" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand enter" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand logs" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand port" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-config" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-proxy" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand stop" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand inspect" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand cp" -a "(ringfence ps --names 2>/dev/null):"
