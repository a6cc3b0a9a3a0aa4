use super::*;

fn edit(old_text: &str, replace_all: bool) -> EditFile {
    EditFile {
        path: "a".to_owned(),
        old_text: old_text.to_owned(),
        new_text: "new".to_owned(),
        replace_all,
    }
}

#[track_caller]
fn check_refused(text: &str, edit: &EditFile, message: &str) {
    let refusal = edited(text, edit).unwrap_err().to_string();
    assert!(refusal.contains(message), "{refusal}");
}

#[test]
fn an_edit_is_made_where_it_can_only_mean_one_place() {
    assert_eq!(edited("one two", &edit("two", false)).unwrap(), ("one new".to_owned(), 1));
    assert_eq!(edited("two two", &edit("two", true)).unwrap(), ("new new".to_owned(), 2));
    check_refused("two two two", &edit("two", false), "it occurs 3 times");
    check_refused("one", &edit("two", false), "`old_text` occurs 0 times");
    check_refused("one", &edit("two", true), "`old_text` occurs 0 times");
    check_refused("one", &edit("", false), "`old_text` is empty");
    check_refused("one\r\ntwo\r\n", &edit("one\ntwo", false), "CR LF");
}

#[track_caller]
fn check_shown(bytes: &[u8], first: usize, most: usize, expected: &str) {
    assert_eq!(FileText::from_bytes("a".to_owned(), bytes, first, most).to_string(), expected);
}

#[test]
fn a_file_is_shown_whole_or_with_the_way_to_the_rest() {
    check_shown(b"one\ntwo\n", 1, 10, "one\ntwo\n");
    check_shown(b"one\ntwo", 1, 10, "one\ntwo");
    check_shown(b"", 1, 10, "[the file is empty]");
    let rest = "[note: lines 1 to 1 of 3 are shown; continue with first_line 2]";
    check_shown(b"one\ntwo\nthree", 1, 1, &format!("one\n\n{rest}"));
    check_shown(b"one\ntwo\nthree", 2, 10, "two\nthree");
    check_shown(b"one\n", 5, 10, "\n[note: the file has only 1 lines]");
}

#[test]
fn a_binary_file_is_said_to_be_binary() {
    let shown = FileText::from_bytes("a".to_owned(), b"\x7fELF\0\0", 1, 10);
    assert!(shown.binary && shown.content.is_empty());
    assert!(shown.to_string().contains("the file is binary and has 6 bytes"));
    assert!(FileText::from_bytes("a".to_owned(), b"\xff\xfe", 1, 10).binary);
}

#[test]
fn the_returned_part_of_a_file_is_bounded() {
    let long = "x".repeat(LONGEST_SHOWN + 10);
    let shown = FileText::from_bytes("a".to_owned(), format!("{long}\nend\n").as_bytes(), 1, 10);
    assert_eq!((shown.content.len(), shown.lines), (LONGEST_SHOWN, 1));
    assert!(shown.to_string().contains("only its beginning is shown"));
    assert!(shown.to_string().contains("continue with first_line 2"));
    let many = "line\n".repeat(LONGEST_SHOWN);
    let shown = FileText::from_bytes("a".to_owned(), many.as_bytes(), 1, usize::MAX);
    assert!(shown.content.len() <= LONGEST_SHOWN && shown.lines < LONGEST_SHOWN);
}
