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

complete -c ringfence -n "__fish_ringfence_needs_command" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_needs_command" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_needs_command" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "run" -d 'Runs one command behind a policy that is enforced or refused'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "code" -d 'Runs code behind a policy that is enforced or refused'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "up" -d 'Starts a sandbox that stays up, and prints how to enter the sandbox'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "exec" -d 'Runs one command in a sandbox that is up'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "enter" -d 'Opens a shell in a sandbox that is up: zsh, bash or sh'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "cp" -d 'Copies files and directories into a sandbox or out of a sandbox'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "sync" -d 'Carries changes between the workspace and its copy in a sandbox, in both directions'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "ps" -d 'Lists the sandboxes that are up'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "logs" -d 'Prints the log of a sandbox, which its guest and its monitor write'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "port" -d 'Forwards a loopback port of this machine to a port in a sandbox, until Ctrl-C'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "ssh" -d 'Opens an ssh session in a sandbox that is up, with the keys of the ssh-agent or of ~/.ssh'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "ssh-config" -d 'Prints an ssh_config(5) entry, with which ssh, scp, sftp, rsync and editors reach a sandbox'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "ssh-proxy" -d 'Connects standard input and output to the sshd of a sandbox, for ssh\'s ProxyCommand'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "stop" -d 'Stops sandboxes, and waits until the sandboxes are gone'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "inspect" -d 'Describes a sandbox: its backend, network and workspace, its promises, and its processes'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "image" -d 'Builds images for containers'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "mcp" -d 'Serves tools that work in a sandbox, for agents that use the Model Context Protocol (MCP)'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "doctor" -d 'Tests what each backend can enforce on this host, and prints hints about the rest'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "wrap" -d 'Creates an executable that runs PROGRAM in a sandbox, and prints the path of the executable'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "unwrap" -d 'Removes a wrapper that `ringfence wrap` created'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "config" -d 'Shows the settings and their schema'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "audit" -d 'Lists, shows and verifies the records of earlier runs'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "egress" -d 'Shows which hosts sandboxes reached or were denied, and suggests a policy'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "serve" -d 'Serves E2B\'s API, so that E2B\'s SDKs use sandboxes of this host'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "keys" -d 'Creates, lists and revokes API keys for clients of `ringfence serve`'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "kubernetes" -d 'Prints manifests for a namespace of sandboxes, and removes sandboxes that nobody keeps'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "completions" -d 'Prints the completions of a shell'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "attempt" -d 'Makes one attempt to break a promise; `doctor --prove` runs the command in a sandbox'
complete -c ringfence -n "__fish_ringfence_needs_command" -f -a "generate" -d 'Writes man pages, completions and references into a directory'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l fd -d 'Passes the open file descriptor N to the command, under the same number; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l image -d 'Image of the container; by default the image in the settings, or else ringfence\'s own' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l pull -d 'Rule for fetching the image: always, missing or never' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l cap -d 'Linux capabilities that are not dropped, separated by commas; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l backend -d 'Backend that enforces the policy: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l workspace -d 'Directory SRC that the sandbox can write, optionally at the path DST in the sandbox' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l read -d 'Lets the sandbox read PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l write -d 'Lets the sandbox read and write PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l hide -d 'Makes files of the workspace that match GLOB unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l protect -d 'Makes files that match GLOB read-only, in addition to git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l net -d 'Network access: none (closed, the default), allowed hosts (allow), or all hosts (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l allow -d 'Allows connections to HOST, on ports 80 and 443 unless PORT is given; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l deny -d 'Denies connections to HOST, even if --allow allows HOST; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l env -d 'Passes on the caller\'s variable NAME, or sets NAME to VALUE; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l time -d 'Ends each command after TIME, such as 30s, 2m or 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l memory -d 'Maximum memory of all processes together, such as 512M or 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l cpus -d 'Maximum number of processors that the processes use together, such as 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l processes -d 'Maximum number of processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l output -d 'Maximum output to keep of each stream with --json; 10M by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l tmp -d 'Maximum size of /tmp, and of the private home; 1G by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l disk -d 'Maximum growth of the workspace; no backend can enforce this limit yet' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l policy -d 'File with a policy in TOML or JSON; the flags take precedence' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l require -d 'Requires that PROMISE is fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l allow-weaker -d 'Accepts that the promise CLAUSE is enforced only in part, or not at all; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -s C -l directory -d 'Changes to the directory DIR first' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l dry-run -d 'Prints the plan instead of running the command'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l json -d 'Captures the output and prints a result object'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l container -d 'Uses a container for development, on podman or else docker'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l transparent -d 'Lets programs that do not use a proxy reach the allowed hosts, too'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -l observe -d 'Allows connections to every public host, and records the hosts'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand run" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -s l -l language -d 'Language of the code; by default the language that the suffix of FILE belongs to' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l block-imports -d 'Action for Python code that imports a module of code.imports: off, warn or block' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l image -d 'Image of the container; by default the image in the settings, or else ringfence\'s own' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l pull -d 'Rule for fetching the image: always, missing or never' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l cap -d 'Linux capabilities that are not dropped, separated by commas; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l backend -d 'Backend that enforces the policy: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l workspace -d 'Directory SRC that the sandbox can write, optionally at the path DST in the sandbox' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l read -d 'Lets the sandbox read PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l write -d 'Lets the sandbox read and write PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l hide -d 'Makes files of the workspace that match GLOB unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l protect -d 'Makes files that match GLOB read-only, in addition to git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l net -d 'Network access: none (closed, the default), allowed hosts (allow), or all hosts (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l allow -d 'Allows connections to HOST, on ports 80 and 443 unless PORT is given; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l deny -d 'Denies connections to HOST, even if --allow allows HOST; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l env -d 'Passes on the caller\'s variable NAME, or sets NAME to VALUE; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l time -d 'Ends each command after TIME, such as 30s, 2m or 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l memory -d 'Maximum memory of all processes together, such as 512M or 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l cpus -d 'Maximum number of processors that the processes use together, such as 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l processes -d 'Maximum number of processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l output -d 'Maximum output to keep of each stream with --json; 10M by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l tmp -d 'Maximum size of /tmp, and of the private home; 1G by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l disk -d 'Maximum growth of the workspace; no backend can enforce this limit yet' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l policy -d 'File with a policy in TOML or JSON; the flags take precedence' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l require -d 'Requires that PROMISE is fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l allow-weaker -d 'Accepts that the promise CLAUSE is enforced only in part, or not at all; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -s C -l directory -d 'Changes to the directory DIR first' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l json -d 'Captures the output and prints a result object'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l container -d 'Uses a container for development, on podman or else docker'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l transparent -d 'Lets programs that do not use a proxy reach the allowed hosts, too'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -l observe -d 'Allows connections to every public host, and records the hosts'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand code" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l lease -d 'Maximum lifetime of the sandbox, such as 30m or 8h; unlimited by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l image -d 'Image of the container; by default the image in the settings, or else ringfence\'s own' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l pull -d 'Rule for fetching the image: always, missing or never' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l cap -d 'Linux capabilities that are not dropped, separated by commas; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l backend -d 'Backend that enforces the policy: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l workspace -d 'Directory SRC that the sandbox can write, optionally at the path DST in the sandbox' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l read -d 'Lets the sandbox read PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l write -d 'Lets the sandbox read and write PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l hide -d 'Makes files of the workspace that match GLOB unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l protect -d 'Makes files that match GLOB read-only, in addition to git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l net -d 'Network access: none (closed, the default), allowed hosts (allow), or all hosts (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l allow -d 'Allows connections to HOST, on ports 80 and 443 unless PORT is given; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l deny -d 'Denies connections to HOST, even if --allow allows HOST; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l env -d 'Passes on the caller\'s variable NAME, or sets NAME to VALUE; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l time -d 'Ends each command after TIME, such as 30s, 2m or 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l memory -d 'Maximum memory of all processes together, such as 512M or 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l cpus -d 'Maximum number of processors that the processes use together, such as 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l processes -d 'Maximum number of processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l output -d 'Maximum output to keep of each stream with --json; 10M by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l tmp -d 'Maximum size of /tmp, and of the private home; 1G by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l disk -d 'Maximum growth of the workspace; no backend can enforce this limit yet' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l policy -d 'File with a policy in TOML or JSON; the flags take precedence' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l require -d 'Requires that PROMISE is fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l allow-weaker -d 'Accepts that the promise CLAUSE is enforced only in part, or not at all; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -s C -l directory -d 'Changes to the directory DIR first' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l replace -d 'Stops an existing sandbox of the same name first'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l json -d 'Prints the manifest of the sandbox as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l monitor -d 'Runs as the monitor of the sandbox, and answers the caller on standard output'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l proxy -d 'Runs the egress proxy in a container of its own, in a network that other containers can join'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l container -d 'Uses a container for development, on podman or else docker'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l transparent -d 'Lets programs that do not use a proxy reach the allowed hosts, too'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -l observe -d 'Allows connections to every public host, and records the hosts'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand up" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -l time -d 'Ends the command after TIME, such as 30s or 2m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -l env -d 'Passes on the caller\'s variable NAME, or sets NAME to VALUE; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -s C -l directory -d 'Starts the command in DIR in the sandbox, instead of the workspace' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -s t -l tty -d 'Gives the command a terminal of its own'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -l json -d 'Captures the output and prints a result object'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand enter" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand enter" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand enter" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand cp" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand cp" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand cp" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand sync" -l dry-run -d 'Prints what a sync would do, and changes nothing'
complete -c ringfence -n "__fish_ringfence_using_subcommand sync" -l json -d 'Prints the report as one line of JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand sync" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand sync" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand sync" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand ps" -l json -d 'Prints the output as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand ps" -l names -d 'Prints only the names, for shell completions'
complete -c ringfence -n "__fish_ringfence_using_subcommand ps" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand ps" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand ps" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand logs" -s f -l follow -d 'Continues to print new lines until the sandbox ends'
complete -c ringfence -n "__fish_ringfence_using_subcommand logs" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand logs" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand logs" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand port" -l to -d 'Local address and port; the address must be on loopback' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand port" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand port" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand port" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh" -s A -l forward-agent -d 'Lets programs in the sandbox use the ssh-agent as long as the session lasts'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-config" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-config" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-config" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-proxy" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-proxy" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-proxy" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand stop" -l all -d 'Stops all sandboxes of `ringfence up`, but not those of clients of `ringfence serve`'
complete -c ringfence -n "__fish_ringfence_using_subcommand stop" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand stop" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand stop" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand inspect" -l json -d 'Prints the output as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand inspect" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand inspect" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand inspect" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and not __fish_seen_subcommand_from build" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and not __fish_seen_subcommand_from build" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and not __fish_seen_subcommand_from build" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and not __fish_seen_subcommand_from build" -f -a "build" -d 'Builds the default image of `ringfence up --container`, or another image, and prints its name'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -l tag -d 'Name of the image' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -l file -d 'Containerfile to build, instead of the default Containerfile' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -l backend -d 'Container engine that builds the image; by default podman, or else docker' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand image; and __fish_seen_subcommand_from build" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l print-config -d 'Prints the settings with which PROGRAM starts this server, including the other given flags' -r -f -a "claude\t''
codex\t''
cursor\t''
vscode\t''"
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l sandbox -d 'Works in the sandbox NAME, which `ringfence up` started, and does not stop the sandbox' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l lease -d 'Maximum lifetime of a client\'s sandbox, such as 30m or 8h; unlimited by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l listen -d 'Serves many clients by HTTP at this address, such as `127.0.0.1:3001`; port 0 is any free port' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l token-file -d 'File with the token that clients must send' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l host -d 'Host name that clients use for this server, in addition to its address; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l idle -d 'Drops a client that is silent for TIME and waits for no answer; 15m by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l clients -d 'Maximum number of clients at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l image -d 'Image of the container; by default the image in the settings, or else ringfence\'s own' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l pull -d 'Rule for fetching the image: always, missing or never' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l cap -d 'Linux capabilities that are not dropped, separated by commas; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l backend -d 'Backend that enforces the policy: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l workspace -d 'Directory SRC that the sandbox can write, optionally at the path DST in the sandbox' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l read -d 'Lets the sandbox read PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l write -d 'Lets the sandbox read and write PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l hide -d 'Makes files of the workspace that match GLOB unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l protect -d 'Makes files that match GLOB read-only, in addition to git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l net -d 'Network access: none (closed, the default), allowed hosts (allow), or all hosts (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l allow -d 'Allows connections to HOST, on ports 80 and 443 unless PORT is given; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l deny -d 'Denies connections to HOST, even if --allow allows HOST; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l env -d 'Passes on the caller\'s variable NAME, or sets NAME to VALUE; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l time -d 'Ends each command after TIME, such as 30s, 2m or 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l memory -d 'Maximum memory of all processes together, such as 512M or 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l cpus -d 'Maximum number of processors that the processes use together, such as 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l processes -d 'Maximum number of processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l output -d 'Maximum output to keep of each stream with --json; 10M by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l tmp -d 'Maximum size of /tmp, and of the private home; 1G by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l disk -d 'Maximum growth of the workspace; no backend can enforce this limit yet' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l policy -d 'File with a policy in TOML or JSON; the flags take precedence' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l require -d 'Requires that PROMISE is fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l allow-weaker -d 'Accepts that the promise CLAUSE is enforced only in part, or not at all; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -s C -l directory -d 'Changes to the directory DIR first' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l container -d 'Uses a container for development, on podman or else docker'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l transparent -d 'Lets programs that do not use a proxy reach the allowed hosts, too'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -l observe -d 'Allows connections to every public host, and records the hosts'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand mcp" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l certificate -d 'Writes the results of --prove to FILE, as JSON' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l backend -d 'Backend that enforces the policy: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l workspace -d 'Directory SRC that the sandbox can write, optionally at the path DST in the sandbox' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l read -d 'Lets the sandbox read PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l write -d 'Lets the sandbox read and write PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l hide -d 'Makes files of the workspace that match GLOB unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l protect -d 'Makes files that match GLOB read-only, in addition to git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l net -d 'Network access: none (closed, the default), allowed hosts (allow), or all hosts (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l allow -d 'Allows connections to HOST, on ports 80 and 443 unless PORT is given; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l deny -d 'Denies connections to HOST, even if --allow allows HOST; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l env -d 'Passes on the caller\'s variable NAME, or sets NAME to VALUE; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l time -d 'Ends each command after TIME, such as 30s, 2m or 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l memory -d 'Maximum memory of all processes together, such as 512M or 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l cpus -d 'Maximum number of processors that the processes use together, such as 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l processes -d 'Maximum number of processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l output -d 'Maximum output to keep of each stream with --json; 10M by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l tmp -d 'Maximum size of /tmp, and of the private home; 1G by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l disk -d 'Maximum growth of the workspace; no backend can enforce this limit yet' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l policy -d 'File with a policy in TOML or JSON; the flags take precedence' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l require -d 'Requires that PROMISE is fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l allow-weaker -d 'Accepts that the promise CLAUSE is enforced only in part, or not at all; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -s C -l directory -d 'Changes to the directory DIR first' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l image -d 'Image of the container; by default the image in the settings, or else ringfence\'s own' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l pull -d 'Rule for fetching the image: always, missing or never' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l cap -d 'Linux capabilities that are not dropped, separated by commas; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l prove -d 'Tries to break every promise in real sandboxes; exits with 1 if a claimed promise breaks'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l json -d 'Prints the findings as JSON, or with --prove the certificate'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l transparent -d 'Lets programs that do not use a proxy reach the allowed hosts, too'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l observe -d 'Allows connections to every public host, and records the hosts'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -l container -d 'Uses a container for development, on podman or else docker'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand doctor" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l backend -d 'Backend that enforces the policy: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l workspace -d 'Directory SRC that the sandbox can write, optionally at the path DST in the sandbox' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l read -d 'Lets the sandbox read PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l write -d 'Lets the sandbox read and write PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l hide -d 'Makes files of the workspace that match GLOB unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l protect -d 'Makes files that match GLOB read-only, in addition to git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l net -d 'Network access: none (closed, the default), allowed hosts (allow), or all hosts (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l allow -d 'Allows connections to HOST, on ports 80 and 443 unless PORT is given; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l deny -d 'Denies connections to HOST, even if --allow allows HOST; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l env -d 'Passes on the caller\'s variable NAME, or sets NAME to VALUE; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l time -d 'Ends each command after TIME, such as 30s, 2m or 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l memory -d 'Maximum memory of all processes together, such as 512M or 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l cpus -d 'Maximum number of processors that the processes use together, such as 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l processes -d 'Maximum number of processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l output -d 'Maximum output to keep of each stream with --json; 10M by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l tmp -d 'Maximum size of /tmp, and of the private home; 1G by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l disk -d 'Maximum growth of the workspace; no backend can enforce this limit yet' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l policy -d 'File with a policy in TOML or JSON; the flags take precedence' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l require -d 'Requires that PROMISE is fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l allow-weaker -d 'Accepts that the promise CLAUSE is enforced only in part, or not at all; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -s C -l directory -d 'Changes to the directory DIR first' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l transparent -d 'Lets programs that do not use a proxy reach the allowed hosts, too'
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -l observe -d 'Allows connections to every public host, and records the hosts'
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand wrap" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand unwrap" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand unwrap" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand unwrap" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and not __fish_seen_subcommand_from explain schema" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and not __fish_seen_subcommand_from explain schema" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and not __fish_seen_subcommand_from explain schema" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and not __fish_seen_subcommand_from explain schema" -f -a "explain" -d 'Prints every effective value with its source'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and not __fish_seen_subcommand_from explain schema" -f -a "schema" -d 'Prints the JSON Schema of a configuration file'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l backend -d 'Backend that enforces the policy: auto, native, bwrap, docker, podman, outer or local' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l workspace -d 'Directory SRC that the sandbox can write, optionally at the path DST in the sandbox' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l read -d 'Lets the sandbox read PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l write -d 'Lets the sandbox read and write PATH; repeatable' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l hide -d 'Makes files of the workspace that match GLOB unreadable; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l protect -d 'Makes files that match GLOB read-only, in addition to git\'s hooks and config; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l net -d 'Network access: none (closed, the default), allowed hosts (allow), or all hosts (open)' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l allow -d 'Allows connections to HOST, on ports 80 and 443 unless PORT is given; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l deny -d 'Denies connections to HOST, even if --allow allows HOST; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l env -d 'Passes on the caller\'s variable NAME, or sets NAME to VALUE; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l time -d 'Ends each command after TIME, such as 30s, 2m or 1h30m' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l memory -d 'Maximum memory of all processes together, such as 512M or 2G' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l cpus -d 'Maximum number of processors that the processes use together, such as 1.5' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l processes -d 'Maximum number of processes and threads at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l output -d 'Maximum output to keep of each stream with --json; 10M by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l tmp -d 'Maximum size of /tmp, and of the private home; 1G by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l disk -d 'Maximum growth of the workspace; no backend can enforce this limit yet' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l policy -d 'File with a policy in TOML or JSON; the flags take precedence' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l require -d 'Requires that PROMISE is fully enforced; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l allow-weaker -d 'Accepts that the promise CLAUSE is enforced only in part, or not at all; repeatable' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -s C -l directory -d 'Changes to the directory DIR first' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l json -d 'Prints the values as a JSON list of objects'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l transparent -d 'Lets programs that do not use a proxy reach the allowed hosts, too'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -l observe -d 'Allows connections to every public host, and records the hosts'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from explain" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from schema" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from schema" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand config; and __fish_seen_subcommand_from schema" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -l dir -d 'Directory of the records, instead of the directory in the settings' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -l json -d 'Prints the output as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -f -a "list" -d 'Lists the records, oldest first'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -f -a "show" -d 'Prints one record as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and not __fish_seen_subcommand_from list show verify" -f -a "verify" -d 'Checks that no record was altered, added or removed; exits with 1 if a record was'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from list" -l dir -d 'Directory of the records, instead of the directory in the settings' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from list" -l json -d 'Prints the output as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from list" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from list" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from show" -l dir -d 'Directory of the records, instead of the directory in the settings' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from show" -l json -d 'Prints the output as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from show" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from show" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from verify" -l dir -d 'Directory of the records, instead of the directory in the settings' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from verify" -l json -d 'Prints the output as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from verify" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from verify" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand audit; and __fish_seen_subcommand_from verify" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -l sandbox -d 'Includes only the sandbox NAME, which `ringfence up` started' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -l since -d 'Includes only events of the last TIME, such as 10m or 2h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -l all -d 'Includes the sandboxes of all workspaces, not only of the workspace of this directory'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -l json -d 'Prints the output as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -f -a "log" -d 'Lists denied connections, and connections that --observe allowed, oldest first'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -f -a "suggest" -d 'Prints the smallest policy that would have allowed these connections, as far as rules can'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and not __fish_seen_subcommand_from log suggest serve" -f -a "serve" -d 'Runs the proxy of a sandbox, in a container of its own'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -l sandbox -d 'Includes only the sandbox NAME, which `ringfence up` started' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -l since -d 'Includes only events of the last TIME, such as 10m or 2h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -l all -d 'Includes the sandboxes of all workspaces, not only of the workspace of this directory'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -l json -d 'Prints the output as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from log" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -l sandbox -d 'Includes only the sandbox NAME, which `ringfence up` started' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -l since -d 'Includes only events of the last TIME, such as 10m or 2h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -l all -d 'Includes the sandboxes of all workspaces, not only of the workspace of this directory'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -l json -d 'Prints the output as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from suggest" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -l sandbox -d 'Includes only the sandbox NAME, which `ringfence up` started' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -l since -d 'Includes only events of the last TIME, such as 10m or 2h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -l all -d 'Includes the sandboxes of all workspaces, not only of the workspace of this directory'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -l json -d 'Prints the output as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand egress; and __fish_seen_subcommand_from serve" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -l listen -d 'Address and port to listen on, 127.0.0.1:3000 by default; port 0 is any free port' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -l config -d 'File with the settings of the server, in TOML' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -l tls-cert -d 'Uses TLS with the certificate in FILE, in PEM format' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -l tls-key -d 'File with the private key of the certificate, in PEM format' -r -F
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -l tls -d 'Uses TLS, with a certificate for *.sbx.localhost that is created on the first start'
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand serve" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -f -a "create" -d 'Creates a key and prints the key once; only a hash of the key is kept'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -f -a "list" -d 'Lists the keys by id, time of creation and name'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and not __fish_seen_subcommand_from create list revoke" -f -a "revoke" -d 'Revokes keys at once'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -l sandboxes -d 'Maximum number of sandboxes at once' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -l per-minute -d 'Maximum number of sandboxes that are started per minute' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -l snapshots -d 'Maximum number of snapshots; 20 by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -l longest -d 'Maximum time that a sandbox runs, such as 30m or 8h; one day by default' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -l cpu-per-day -d 'Maximum processor time of all sandboxes of the key per day in UTC, such as 30m or 8h' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from create" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from list" -l json -d 'Prints the output as JSON'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from list" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from list" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from revoke" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand keys; and __fish_seen_subcommand_from revoke" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and not __fish_seen_subcommand_from manifest sweep" -l namespace -d 'Namespace of the sandboxes; by default the namespace of the settings or of the kubeconfig' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and not __fish_seen_subcommand_from manifest sweep" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and not __fish_seen_subcommand_from manifest sweep" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and not __fish_seen_subcommand_from manifest sweep" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and not __fish_seen_subcommand_from manifest sweep" -f -a "manifest" -d 'Prints a manifest as YAML, for `kubectl apply -f -`'
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and not __fish_seen_subcommand_from manifest sweep" -f -a "sweep" -d 'Removes the pods and Jobs whose lease has ended, and prints their number'
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and __fish_seen_subcommand_from manifest" -l namespace -d 'Namespace of the sandboxes; by default the namespace of the settings or of the kubeconfig' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and __fish_seen_subcommand_from manifest" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and __fish_seen_subcommand_from manifest" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and __fish_seen_subcommand_from manifest" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and __fish_seen_subcommand_from sweep" -l namespace -d 'Namespace of the sandboxes; by default the namespace of the settings or of the kubeconfig' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and __fish_seen_subcommand_from sweep" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and __fish_seen_subcommand_from sweep" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand kubernetes; and __fish_seen_subcommand_from sweep" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand completions" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand completions" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand completions" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand attempt" -l context -d 'Context of the attempt, which describes the host, in JSON' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand attempt" -l mark -d 'Text that marks this process in a list of processes' -r
complete -c ringfence -n "__fish_ringfence_using_subcommand attempt" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand attempt" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand attempt" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand generate" -s v -l verbose -d 'Logs more: given once, also events; given twice, also decisions'
complete -c ringfence -n "__fish_ringfence_using_subcommand generate" -s h -l help -d 'Print help'
complete -c ringfence -n "__fish_ringfence_using_subcommand generate" -s V -l version -d 'Print version'
complete -c ringfence -n "__fish_ringfence_using_subcommand exec" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand enter" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand sync" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand logs" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand port" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-config" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand ssh-proxy" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand stop" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand inspect" -f -a "(ringfence ps --names 2>/dev/null)"
complete -c ringfence -n "__fish_ringfence_using_subcommand cp" -a "(ringfence ps --names 2>/dev/null):"
