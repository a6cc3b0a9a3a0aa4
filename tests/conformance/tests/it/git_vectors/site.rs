//! Fresh repositories for vectors, and the commands of callers in them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use conformance::{BackendSetup, CallerDirectory};
use serde_json::Value;

use super::vector::GitVector;

/// Seconds after which a command of the host's git counts as hanging.
const HOST_TIMEOUT: &str = "60";

/// Script that makes, in the current directory, the repositories of which sites are copies.
///
/// `NAME/w` is the workspace of a template, and `NAME/home` is the caller's home directory.
const BUILD_TEMPLATES: &str = concat!(
    r#"
set -e
export HOME="$PWD/plain/home" GIT_CONFIG_NOSYSTEM=1
mkdir -p plain/home empty/w
git config --global user.name demo
git config --global user.email demo@example.org
git config --global init.defaultBranch main
git config --global protocol.file.allow always
git config --global advice.detachedHead false
cp -a plain/home empty/home
mkdir -p several/w/one
cp -a plain/home several/home
export GIT_TEMPLATE_DIR=
git init -q --bare origin.git
git init -q seed
(
    cd seed
    mkdir -p src/deep/er
    seq 20 > file.txt
    echo one > src/deep/er/x.c
    printf '.evil\n.evil.*\n' > .gitignore
    git add . && git commit -q -m zero
    echo two >> src/deep/er/x.c
    git commit -q -a -m one
    git checkout -q -b side && sed -i 's/^10$/side/' file.txt && git commit -q -a -m side
    git checkout -q main && sed -i 's/^10$/main/' file.txt && git commit -q -a -m two
    git push -q ../origin.git main side
)
git clone -q origin.git plain/w
git -C plain/w branch -q side origin/side
mkdir plain/w/.git/hooks plain/w/.git/info

cp -a plain/w/. several/w/one

cp -a plain rebasing
GIT_SEQUENCE_EDITOR='sed -i 1ibreak' git -C rebasing/w rebase -q -i side 2> /dev/null
cp -a plain picking
git -C picking/w cherry-pick side main~1 > /dev/null 2>&1 || true
test -d picking/w/.git/sequencer

for name in sub two/parts 1/2/3/4/5/6/7 1/2/3/4/5/6/7/8/9; do
    super=super-$(echo "$name" | tr / -)
    cp -a plain "$super"
    git -C "$super/w" submodule --quiet add --name "$name" "$PWD/origin.git" sub
    git -C "$super/w" commit -q -m sub
    mkdir -p "$super/w/.git/modules/$name/hooks" "$super/w/.git/modules/$name/info"
    # The commit of the superproject and the one that is checked out differ: there is something "#,
    r#"to update.
    git -C "$super/w/sub" checkout -q HEAD~1
done
cp -a super-sub uninitialised
git -C uninitialised/w submodule --quiet deinit --all --force
rm -rf uninitialised/w/.git/modules
cp -a super-sub inner
git -C inner/w/sub checkout -q -b inner
git -C inner/w/sub submodule --quiet add --name inner "$PWD/origin.git" inner
git -C inner/w/sub commit -q -m inner

# There is something to fetch, too.
git -C seed commit -q --allow-empty -m three
git -C seed push -q ../origin.git main
"#
);

/// Repositories to copy, and a server that asks for a password.
pub(super) struct RepositoryTemplates {
    setup: BackendSetup,
    place: CallerDirectory,
    port: u16,
}

/// Outcome of one `ringfence run`.
#[derive(Debug)]
pub(super) struct RunReport {
    pub(super) planted: Vec<String>,
    /// Output of ringfence, if the command did not run to its end.
    pub(super) refusal: Option<String>,
}

/// One copy of a template: a directory with the workspace and the files around it.
pub(super) struct RepositorySite {
    setup: BackendSetup,
    place: CallerDirectory,
    workspace: PathBuf,
    port: u16,
}

impl RepositoryTemplates {
    pub(super) fn build(setup: BackendSetup) -> RepositoryTemplates {
        let templates = RepositoryTemplates {
            setup,
            place: CallerDirectory::for_caller(setup.caller),
            port: serve_unauthorized(),
        };
        let mut shell = setup.command("sh", &templates.place);
        succeed(shell.args(["-c", BUILD_TEMPLATES]), "building the templates");
        templates
    }

    /// Copies the template of a vector, and prepares the copy with the script of the vector's user.
    pub(super) fn copy_for(&self, vector: &GitVector) -> RepositorySite {
        let place = CallerDirectory::for_caller(self.setup.caller);
        let workspace = place.path().join(vector.workspace);
        let site = RepositorySite { setup: self.setup, place, workspace, port: self.port };
        let template = self.place.path().join(vector.template);
        let script = format!(
            "set -e; cp -a '{}/.' '{}'; mkdir out; set -x\n{}",
            template.display(),
            site.path().display(),
            vector.prepare
        );
        let mut shell = site.host_shell(&script, vector);
        succeed(shell.current_dir(site.path()), &format!("preparing {}", vector.id));
        site
    }
}

impl RepositorySite {
    pub(super) fn path(&self) -> &Path {
        self.place.path()
    }

    pub(super) fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Runs a script in a sandbox of the workspace.
    pub(super) fn run_in_sandbox(&self, script: &str, vector: &GitVector) -> RunReport {
        let script = format!("{script}\necho reached its end");
        let output = self.ringfence_run(&["--json"], &script, vector);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let Ok(result) = serde_json::from_slice::<Value>(&output.stdout) else {
            return RunReport { planted: Vec::new(), refusal: Some(words) };
        };
        let planted = result["meta"]["planted"].as_array().expect("a result has the list");
        let planted: Vec<String> =
            planted.iter().map(|path| path.as_str().expect("paths are text").to_owned()).collect();
        let said = result["stdout"].as_str().unwrap_or_default();
        let refusal = (!said.contains("reached its end")).then(|| format!("{result} {words}"));
        RunReport { planted, refusal }
    }

    /// Returns the standard error of a run without `--json`.
    pub(super) fn warnings_of_run(&self, script: &str, vector: &GitVector) -> String {
        let output = self.ringfence_run(&[], script, vector);
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn ringfence_run(&self, flags: &[&str], script: &str, vector: &GitVector) -> Output {
        let mut command = self.setup.ringfence("run", &self.place);
        command.args(flags).arg("--workspace").arg(&self.workspace);
        command.args(["--", "sh", "-c", &self.filled_in(script, vector)]);
        self.set_environment(command.current_dir(&self.workspace), vector);
        command.output().expect("ringfence can be started")
    }

    /// Makes another directory of the site the workspace.
    pub(super) fn set_workspace(&mut self, name: &str) {
        self.workspace = self.path().join(name);
    }

    /// Runs a script on the host with all rights of the caller.
    pub(super) fn run_on_host(&self, script: &str, vector: &GitVector) -> Output {
        let mut command = self.host_shell(script, vector);
        command.current_dir(&self.workspace);
        command.output().expect("sh can be started")
    }

    fn host_shell(&self, script: &str, vector: &GitVector) -> Command {
        let mut command = self.setup.command("timeout", &self.place);
        command.args([HOST_TIMEOUT, "sh", "-c", &self.filled_in(script, vector)]);
        self.set_environment(&mut command, vector);
        command
    }

    /// Returns true if the marker has run since the last call, and removes its trace.
    pub(super) fn take_marker(&self) -> bool {
        fs_err::remove_file(self.path().join("out/ran")).is_ok()
    }

    fn set_environment(&self, command: &mut Command, vector: &GitVector) {
        command.env("HOME", self.path().join("home"));
        command.env("GIT_CONFIG_SYSTEM", self.path().join("system.gitconfig"));
        command.env("GIT_TERMINAL_PROMPT", "0").env("EDITOR", "true").env("TERM", "dumb");
        command.env("GIT_TEMPLATE_DIR", "");
        let variables = vector.environment.iter();
        command.envs(variables.map(|(name, value)| (name, self.filled_in(value, vector))));
    }

    fn filled_in(&self, script: &str, vector: &GitVector) -> String {
        let workspace = self.workspace.display().to_string();
        let mut text = script.replace("@M@", "@W@/.evil/m").replace("@W@", &workspace);
        text = text.replace("@S@", &self.path().display().to_string());
        text = text.replace("@R@", vector.directory).replace("@PORT@", &self.port.to_string());
        text
    }
}

#[track_caller]
fn succeed(command: &mut Command, purpose: &str) {
    let output = command.output().expect("the program can be started");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{purpose}: {} {words}", output.status);
}

/// Serves HTTP on a loopback port until the tests end. Every request needs a password.
fn serve_unauthorized() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback has a free port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || refuse(stream));
        }
    });
    port
}

fn refuse(mut stream: TcpStream) {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => request.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
    let answer = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\n\
                  Content-Length: 0\r\nConnection: close\r\n\r\n";
    let _ = stream.write_all(answer.as_bytes()); // git may have closed the connection
}
