//! Tests of scripts that git on the host executes, and of the files that they load.

use super::*;

#[test]
fn scripts_behind_links_in_hook_directories_are_protected() {
    let place = TestWorkspace::new(&[
        "ws/.husky/_/h",
        "ws/tmpl/hooks/h",
        "ws/tools/one",
        "ws/tools/two",
        "ws/tools/three",
    ]);
    place.write("ws/.git/config", "[core]\n\thooksPath = .husky/_\n[init]\n\ttemplateDir = tmpl\n");
    for (link, text) in [
        (".husky/_/pre-commit", "../../tools/one"),
        (".husky/x", "../tools/two"),
        ("tmpl/hooks/x", "../../tools/three"),
    ] {
        symlink(text, place.path("ws").join(link)).unwrap();
    }
    let steps = place.steps(&place.guarded(&[]), &[]);
    for step in ["protect /work/tools/one", "protect /work/tools/two", "protect /work/tools/three"]
    {
        assert!(steps.contains(&step.to_owned()), "{step} is not in {steps:?}");
    }
}

#[test]
fn files_that_an_interpreter_finds_beside_a_script_are_guarded() {
    let python = "#!/usr/bin/env python3\nimport json\n";
    // The command, a file of the user's with its content, and the file that a run adds.
    let cases = [
        ("tools/clean.py", "tools/clean.py", python, "tools/json.py"),
        ("sh tools/clean", "tools/clean", python, "tools/json/__init__.py"),
        ("python3 -m tools.clean", "tools/clean.py", "", "tools/__pycache__/clean.cpython-311.pyc"),
        ("python3 -m tools", "tools/__main__.py", "", "tools/__pycache__/__main__.cpython-311.pyc"),
        (
            ".venv/bin/python -m strip",
            ".venv/pyvenv.cfg",
            "",
            ".venv/lib/python3.11/site-packages/x.pth",
        ),
        (
            ".venv/bin/python -m strip",
            ".venv/pyvenv.cfg",
            "",
            ".venv/lib/python3.11/site-packages/strip.py",
        ),
        (
            ".venv/bin/python x",
            ".venv/pyvenv.cfg",
            "",
            ".venv/lib/python3.11/site-packages/sitecustomize.py",
        ),
    ];
    for (command, file, text, added) in cases {
        let place = TestWorkspace::new(&["ws/.git/HEAD"]);
        place.write("ws/.git/config", format!("[filter \"x\"]\n\tclean = {command}\n"));
        place.write(&format!("ws/{file}"), text);
        let guarded = place.guarded(&[]);
        assert_eq!(guarded.planted(), [] as [&str; 0], "{command}");
        place.write(&format!("ws/{added}"), "");
        assert_eq!(guarded.planted(), [added], "{command}");
    }
}

#[test]
fn a_script_that_is_named_without_its_end_is_protected() {
    let place = TestWorkspace::new(&["ws/tools/clean.js", "ws/tools/other.js"]);
    place.write(
        "ws/.git/config",
        "[filter \"x\"]\n\tclean = node tools/clean\n\tsmudge = sh tools/other\n",
    );
    let steps = place.steps(&place.guarded(&[]), &[]);
    assert!(steps.contains(&"protect /work/tools/clean.js".to_owned()), "{steps:?}");
    assert!(!steps.contains(&"protect /work/tools/other.js".to_owned()), "{steps:?}");
}

#[test]
fn modules_beside_a_script_that_a_hook_leads_to_are_reported() {
    let place = repository();
    place.write("ws/tools/check.py", "#!/usr/bin/python3\n");
    fs_err::create_dir(place.path("ws/.git/hooks")).unwrap();
    symlink("../../tools/check.py", place.path("ws/.git/hooks/pre-commit")).unwrap();
    let guarded = place.guarded(&[]);
    place.write("ws/tools/json.py", "");
    assert_eq!(guarded.planted(), ["tools/json.py"]);
}

#[test]
fn arguments_of_an_alias_are_no_files() {
    let place = TestWorkspace::new(&[
        "ws/build",
        "ws/lint.py",
        "ws/tools/run",
        "ws/tools/Makefile",
        "ws/clean",
    ]);
    let config = "[alias]\n\ta = !make build -C tools && lint.py && tools/run\n\
        [filter \"x\"]\n\tclean = sh clean\n";
    place.write("ws/.git/config", config);
    let steps = place.steps(&place.guarded(&[]), &[]);
    for file in ["lint.py", "tools/run", "tools/Makefile", "clean"] {
        assert!(steps.contains(&format!("protect /work/{file}")), "{file} is not in {steps:?}");
    }
    assert!(!steps.contains(&"protect /work/build".to_owned()), "{steps:?}");
}
