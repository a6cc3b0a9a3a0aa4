//! Index files that no git writes, in which git sees a submodule that another reader may miss.

use super::vector::{
    FilePayload, GitScope, GitSetting, GitVector, WriteTrick, compose, here_document,
};

/// Script that makes a repository of the sandbox's own at `zz/new`, behind more directories than
/// are searched.
const PLANT_REPOSITORY: &str = r#"
export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x
for number in $(seq 100 145); do mkdir "0$number"; done
git init -q zz/new
echo one > zz/new/one
git -C zz/new add one
git -C zz/new commit -q -m one
new=$(git -C zz/new rev-parse HEAD)
git -C zz/new config core.fsmonitor '@M@'
git -C zz/new remote add origin /x
git -C zz/new config remote.origin.uploadpack '@M@'
git config --file .gitmodules submodule.n.path zz/new
git config --file .gitmodules submodule.n.url ./x
git config --file .gitmodules submodule.n.fetchRecurseSubmodules true
"#;

/// Python functions that read the tracked files and write an index of any version, entry by entry.
const INDEX_TOOLS: &str = concat!(
    r#"
import hashlib, struct, subprocess, sys
new = sys.argv[1]
def entry(mode, oid, name, flags=0, more=b'', stated=None):
    length = len(name) if stated is None else stated
    data = struct.pack('>10I', 1, 0, 1, 0, 1, 1, mode, 1, 1, 1) + bytes.fromhex(oid)
    return data + struct.pack('>H', length | flags) + more
def padded(data):
    return data + b'\0' * (8 - len(data) % 8)
def whole(mode, oid, name, **rest):
    return padded(entry(mode, oid, name, **rest) + name)
def extension(name, body):
    return name + struct.pack('>I', len(body)) + body
def index(version, entries, extensions=b'', count=None):
    head = b'DIRC' + struct.pack('>II', version, len(entries) if count is None else count)
    data = head + b''.join(entries) + extensions
    return data + hashlib.sha1(data).digest()
def write(data, name='index'):
    open('.git/' + name, 'wb').write(data)
def write_shared(entries):
    data = index(2, entries)
    write(data, 'sharedindex.' + data[-20:].hex())
    return data[-20:]
def bits(*positions):
    word = sum(1 << position for position in positions)
    words = [1 << 33, word] if positions else [0]
    size = max(positions) + 1 if positions else 0
    return struct.pack('>II', size, len(words)) + struct.pack('>%dQ' % len(words), *words) + "#,
    r#"struct.pack('>I', 0)
listed = subprocess.run(['git', 'ls-files', '-s', '-z'], "#,
    r#"capture_output=True).stdout.split(b'\0')[:-1]
tracked = []
for line in listed:
    (mode, oid, _), name = line.split(b'\t')[0].split(), line.split(b'\t')[1]
    tracked.append((int(mode, 8), oid.decode(), name))
files = [whole(*parts) for parts in tracked]
blob = tracked[0][1]
link = whole(0o160000, new, b'zz/new')
"#
);

/// Name of a vector, the user's preparation, and the program that writes the index.
const INDEXES: [(&str, &str, &str); 8] = [
    ("plain", "", "write(index(2, files + [link]))"),
    (
        // A reader that ignores the extended flags in version 2 expects the next entry eight bytes
        // too early.
        "flags-of-another-version",
        "",
        "first = padded(entry(0o100644, blob, b'00000000', flags=0x4000, more=b'\\0\\0') + \
         b'00000000')
write(index(2, [first] + files + [link], extension(b'ZZZZ', bytes(4096))))",
    ),
    (
        // Git uses the length that the entry states and does not search for the NUL.
        "stated-length",
        "",
        "hidden = entry(0o160000, new, b'zz/new') + b'\\2zz/new\\0'
hidden = b'\\1' * 24 + hidden[24:28] + b'\\1' * 12 + hidden[40:]
write(index(4, [entry(0o100644, blob, b'00') + b'\\0' + b'00X', hidden], extension(b'ZZZZ', \
bytes(4096))))",
    ),
    (
        "two-shared-indexes",
        "",
        "first, last = write_shared(files), write_shared(files + [link])
shared = [extension(b'link', name + bits() + bits()) for name in (first, last)]
write(index(2, [], b''.join(shared)))",
    ),
    (
        // The path of a replaced entry is in the shared index, where the entry is a file.
        "replaced-entry-of-shared-index",
        "",
        "base = write_shared(files + [whole(0o100644, blob, b'zz/new')])
write(index(2, [whole(0o160000, new, b'')], extension(b'link', base + bits() + bits(len(files)))))",
    ),
    (
        "sparse-directory",
        "",
        "made = subprocess.run(['git', 'mktree', '--missing'], input=b'160000 commit ' + \
         new.encode() + b'\\tnew\\n',
    capture_output=True).stdout.decode().strip()
directory = padded(entry(0o040000, made, b'zz/', flags=0x4000, more=b'\\x40\\0') + b'zz/')
write(index(3, files + [directory], extension(b'sdir', b'')))",
    ),
    (
        // With several threads, git starts at the offsets that a table of entry blocks states.
        "table-of-blocks",
        "git -C w config index.threads 4",
        "start = 12
shown = [whole(0o100644, blob, b'00000000'), whole(0o100644, blob, b'zz-new')]
spare = [whole(0o100644, blob, b'00000000'), link]
tables = start + sum(map(len, shown))
body = tables + 8
table = struct.pack('>III', 1, start, 1)
place = tables + 8 + 12 + 8 + 8
table = table + struct.pack('>II', place, 1)
extensions = extension(b'IEOT', table) + extension(b'ZZZZ', link)
heads = b'IEOT' + struct.pack('>I', len(table)) + b'ZZZZ' + struct.pack('>I', len(link))
marker = struct.pack('>I', tables) + hashlib.sha1(heads).digest()
write(index(2, shown, extensions + extension(b'EOIE', marker)))",
    ),
    (
        // The extensions are nested inside another extension.
        "marker-of-the-end",
        "git -C w config index.threads 4",
        "base = write_shared(files + [link])
start = 12 + sum(map(len, files))
inner = extension(b'link', base + bits() + bits())
marker = struct.pack('>I', start + 8) + hashlib.sha1(b'link' + struct.pack('>I', len(inner) - \
8)).digest()
write(index(2, files, extension(b'ZZZZ', inner + extension(b'EOIE', marker))))",
    ),
];

/// Script that makes a submodule whose path is too long for a lookup from the root, but not for one
/// from the work tree.
const LONG_PATH: &str = r#"
path=zz
while [ ${#path} -lt 3850 ]; do path=$path/$(printf 'd%.0s' $(seq 100)); done
while [ $((${#W} + ${#path})) -lt 4090 ]; do path=$path/e; done
mkdir -p "$path"
mv zz/new/one "$path/one"
mv zz/new/.git "$path/.git"
git update-index --add --cacheinfo "160000,$new,$path"
"#;

/// Returns all vectors of this module.
pub(super) fn vectors() -> Vec<GitVector> {
    let setting = GitSetting {
        name: "fsmonitor",
        config: "",
        extra: PLANT_REPOSITORY,
        host: "git status; git diff; git fetch",
    };
    let mut vectors = Vec::new();
    for (name, prepare, program) in INDEXES {
        let scope = GitScope {
            name: "index",
            prepare,
            file: ".git/index",
            leads: &["zz/new"],
            ..GitScope::PLAIN
        };
        let mut vector = compose(
            &scope,
            &setting,
            FilePayload::Whole(""),
            &WriteTrick::scripted(name, None, ""),
        );
        vector.add_to_last_run(&here_document(
            ".evil/index.py",
            &format!("{INDEX_TOOLS}{program}\n"),
        ));
        vector.add_to_last_run("python3 .evil/index.py \"$new\"\n");
        vectors.push(vector);
    }
    // Git finds the submodules of a worktree relative to the worktree, wherever the index is.
    let scope = GitScope {
        name: "index-of-worktree-outside",
        prepare: "git -C w worktree add -q ../tree",
        directory: "../tree",
        file: "zz/new",
        ..GitScope::PLAIN
    };
    let mut vector =
        compose(&scope, &setting, FilePayload::Whole(""), &WriteTrick::scripted("plain", None, ""));
    let program = "path = b'../w/zz/new'
write(index(2, [whole(0o160000, new, path)] + files), 'worktrees/tree/index')\n";
    vector.add_to_last_run(&here_document(".evil/index.py", &format!("{INDEX_TOOLS}{program}")));
    vector.add_to_last_run("python3 .evil/index.py \"$new\"\n");
    vectors.push(vector);
    let scope = GitScope { name: "index", file: ".git/index", leads: &["zz"], ..GitScope::PLAIN };
    vectors.push(compose(
        &scope,
        &setting,
        FilePayload::Whole(""),
        &WriteTrick::scripted("long-path", None, LONG_PATH),
    ));
    vectors
}
