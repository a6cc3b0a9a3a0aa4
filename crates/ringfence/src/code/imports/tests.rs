use std::time::{Duration, Instant};

use super::*;

fn modules(names: &[&str]) -> Vec<PythonModule> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn found(code: &str) -> Vec<String> {
    let listed = modules(&["os", "subprocess", "socket", "xml.dom"]);
    find(code, &listed).found.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn check(code: &str, expected: &[&str]) {
    assert_eq!(found(code), expected, "{code}");
}

#[test]
fn imports_are_found_however_they_are_written() {
    check("import os", &["line 1, column 8: import os"]);
    check("import sys, os as x, re", &["line 1, column 13: import os"]);
    check("import os.path", &["line 1, column 8: import os.path"]);
    check("\nx = 1; import os", &["line 2, column 15: import os"]);
    check("from os import path", &["line 1, column 1: from os import"]);
    check("from os.path import join as j", &["line 1, column 1: from os.path import"]);
    check("from os import *", &["line 1, column 1: from os import"]);
    check("from xml import sax, dom", &["line 1, column 22: from xml.dom import"]);
    check("import xml.dom.minidom", &["line 1, column 8: import xml.dom.minidom"]);
    check("import \\\n  os", &["line 2, column 3: import os"]);
    // Python normalises identifiers to NFKC.
    check("import ｏｓ", &["line 1, column 8: import os"]);
}

#[test]
fn modules_that_are_not_listed_are_not_found() {
    for code in [
        "import sys",
        "import oslo, ossaudiodev",
        "from . import os",
        "from .os import path",
        "from ..socket import x",
        "import xml",
        "from xml import sax",
        "os = 1; os.path",
        "'import os'",
        "# import os",
        "print('import os')",
        "__import__(name)",
        "__import__(f'{x}')",
        "importlib.import_module('os')",
        "import importlib; importlib.import_module('.os', 'p')",
        "import importlib; importlib.reload('os')",
        "exec(code)",
        "evaluate('import os')",
    ] {
        check(code, &[]);
    }
}

#[test]
fn nesting_hides_no_import() {
    for around in [
        "def f():\n  {}",
        "async def f():\n  {}",
        "class A:\n  {}",
        "try:\n  {}\nexcept E: pass",
        "try: pass\nexcept E:\n  {}",
        "try: pass\nfinally:\n  {}",
        "if x: {}",
        "if x: pass\nelif y: {}",
        "if x: pass\nelse:\n  {}",
        "for x in y: {}",
        "while x: {}",
        "with x: {}",
        "match x:\n  case 1:\n    {}",
    ] {
        assert_eq!(found(&around.replace("{}", "import os")).len(), 1, "{around}");
        assert_eq!(found(&around.replace("{}", "__import__('os')")).len(), 1, "{around}");
    }
    for around in [
        "[{} for x in y]",
        "lambda: {}",
        "f(a, b={})",
        "f'{{}}'",
        "x if {} else y",
        "{1: {}}",
        "@f({})\ndef g(): pass",
    ] {
        assert_eq!(found(&around.replace("{}", "__import__('os')")).len(), 1, "{around}");
    }
}

#[test]
fn calls_that_import_are_found_under_every_name() {
    let call = |how: &str| [format!("{how} of os")];
    for (code, how) in [
        ("__import__('os')", "line 1, column 1: __import__"),
        ("__import__(name='os')", "line 1, column 1: __import__"),
        ("__import__('o' 's')", "line 1, column 1: __import__"),
        ("__import__('o' + 's')", "line 1, column 1: __import__"),
        ("__import__(f'os')", "line 1, column 1: __import__"),
        (
            "__import__('o' f'{\"\"}s') if 0 else __import__(f'o' 's')",
            "line 1, column 36: __import__",
        ),
        ("f = __import__\nf('os')", "line 2, column 1: __import__"),
        ("(f := __import__)('os')", "line 1, column 1: __import__"),
        ("(f := __import__)\nf('os')", "line 2, column 1: __import__"),
        ("f: object = __import__\nf('os')", "line 2, column 1: __import__"),
        ("import builtins as b\nb.__import__('os')", "line 2, column 1: __import__"),
        ("from builtins import __import__ as f\nf('os')", "line 2, column 1: __import__"),
        ("__builtins__.__import__('os')", "line 1, column 1: __import__"),
        ("__builtins__['__import__']('os')", "line 1, column 1: __import__"),
        ("import importlib\nimportlib.import_module('os')", "line 2, column 1: import_module"),
        ("import importlib as i\ni.import_module('os')", "line 2, column 1: import_module"),
        ("import importlib.util\nimportlib.import_module('os')", "line 2, column 1: import_module"),
        ("from importlib import import_module as i\ni('os')", "line 2, column 1: import_module"),
        ("from importlib import *\nimport_module('os')", "line 2, column 1: import_module"),
        (
            "def f(): i.import_module('os')\nimport importlib as i",
            "line 1, column 10: import_module",
        ),
        ("import importlib\nimportlib.__import__('os')", "line 2, column 1: __import__"),
        ("__import__('importlib').import_module('os')", "line 1, column 1: import_module"),
    ] {
        assert_eq!(found(code), call(how), "{code}");
    }
    check("__import__('os').path", &["line 1, column 1: __import__ of os"]);
}

#[test]
fn text_that_is_executed_is_examined() {
    check("exec('import os')", &["line 1, column 6: exec of text that imports os"]);
    check("exec(b'import os')", &["line 1, column 6: exec of text that imports os"]);
    check(
        "exec('''\nimport re\nimport os\n''')",
        &["line 1, column 6: exec of text that imports os"],
    );
    check("eval(\" __import__('os')\")", &["line 1, column 6: eval of text that imports os"]);
    check(
        "exec(compile('import os', '', 'exec'))",
        &["line 1, column 14: exec of text that imports os"],
    );
    check("exec('exec(\"import os\")')", &["line 1, column 6: exec of text that imports os"]);
    check(
        "import importlib as i\nexec('i.import_module(\"socket\")')",
        &["line 2, column 6: exec of text that imports socket"],
    );
    // A literal in a literal, deeper than `MAX_LITERAL_DEPTH`.
    let mut code = "import os".to_owned();
    for _ in 0..12 {
        code = format!("exec({code:?})");
    }
    check(&code, &["line 1, column 6: too long, or nested too deeply, to be examined"]);
}

#[test]
fn columns_are_characters_and_lines_end_as_python_ends_them() {
    check("é = 'ü'; import os", &["line 1, column 17: import os"]);
    check(
        "x = 1\r\nimport os\rimport socket",
        &["line 2, column 8: import os", "line 3, column 8: import socket"],
    );
    check("\u{feff}import os", &["line 1, column 8: import os"]);
}

#[test]
fn imports_beside_a_syntax_error_are_found() {
    check("import os\ndef f(:\n", &["line 1, column 8: import os"]);
    check("x = = 1\nimport os\n", &["line 2, column 8: import os"]);
    check("print('a\nimport os", &["line 2, column 8: import os"]);
    check("\0", &[]);
    check("", &[]);
}

#[test]
fn a_syntax_error_has_a_position() {
    let error = |code: &str| find(code, &[]).error;
    assert_eq!(error("x = 1\n"), None);
    assert_eq!(error("x = 1\ny = = 2\n(\n"), Some((2, 5)));
    // Syntax errors in executed text are not reported as errors of the code.
    assert_eq!(error("exec('= =')"), None);
}

#[test]
fn findings_are_bounded_in_number() {
    assert_eq!(found(&"import os\n".repeat(10_000)).len(), MAX_FINDINGS);
    assert_eq!(
        found(&format!("exec({:?})\n", "import os\n".repeat(10)).repeat(1000)).len(),
        MAX_FINDINGS
    );
}

/// Code that is nested too deeply is reported, in bounded time and on a bounded stack.
#[test]
fn code_that_is_nested_without_end_is_not_examined_and_harms_nobody() {
    let deep =
        |before: &str, after: &str| format!("{}x{}", before.repeat(60_000), after.repeat(60_000));
    let began = Instant::now();
    for code in [
        deep("(", ")"),
        deep("[", ""),
        deep("{", ""),
        deep("f(", ")"),
        deep("not ", ""),
        deep("-", ""),
        deep("lambda:", ""),
        deep("lambda a,b:", ""),
        deep("await ", ""),
        deep("yield a,", ""),
        deep("1 if 1 else ", ""),
        deep("2**", ""),
        deep("1+", ""),
        deep("", ".a"),
        deep("", "()"),
        deep("", "[0]"),
        deep("if 1:", ""),
        deep("if 1: a;", ""),
        deep("if 1: a,", ""),
        deep("f'{", ""),
        deep("f'{x:{", ""),
        deep("a:=", ""),
        deep("*", ""),
        deep("x = ", ""),
        deep("a and b or ", ""),
        deep("@", ""),
        deep("with (", ""),
        deep("match ", ""),
        deep("case [", ""),
    ] {
        let found = found(&code);
        let is_deep = found
            .iter()
            .any(|found| found.ends_with("too long, or nested too deeply, to be examined"));
        assert!(is_deep || found.is_empty(), "{found:?}: {}", &code[..40]);
    }
    assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
}

/// At the deepest nesting that is examined, the stack of the thread must be enough.
#[test]
fn code_that_is_nested_as_deeply_as_it_may_be_is_examined() {
    for (before, after) in [
        ("(", ")"),
        ("[", "]"),
        ("f(", ")"),
        ("-", ""),
        ("lambda:", ""),
        ("1+", ""),
        ("", ".a"),
        ("", "()"),
    ] {
        let code = format!("{}__import__('os'){}", before.repeat(2400), after.repeat(2400));
        assert_eq!(found(&code).len(), 1, "{before} {after}");
    }
    let blocks: String = (0..900).map(|depth| format!("{}if 1:\n", " ".repeat(depth))).collect();
    let code = format!("{blocks}{}import os", " ".repeat(900));
    assert_eq!(found(&code), ["line 901, column 908: import os"]);
}

#[test]
fn a_long_list_of_short_things_is_not_deep() {
    let list =
        format!("x = [{}]\nimport os", "-1, a.b, f(1, 2), lambda x, y: 1, {1: 2},\n".repeat(5000));
    assert_eq!(found(&list).len(), 1);
    let text = format!("x = ({})\nimport os", "'some text'\n".repeat(20_000));
    assert_eq!(found(&text).len(), 1);
    let lines = format!("{}import os", "a = b + c\n".repeat(50_000));
    assert_eq!(found(&lines).len(), 1);
    assert_eq!(
        found(&" ".repeat(MAX_CODE_BYTES + 1)),
        ["line 1, column 1: too long, or nested too deeply, to be examined"]
    );
}
