//! Tables for a terminal.

/// How the cells of a column are set.
#[derive(Clone, Copy)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Sets rows under a head, each column as wide as its widest cell.
pub(crate) fn table<const N: usize>(head: [(&str, Align); N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].0.chars().count()]).max().unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: [&str; N]| {
        let cells = (0..N).map(|column| match head[column].1 {
            Align::Left => format!("{:<width$}", cells[column], width = widths[column]),
            Align::Right => format!("{:>width$}", cells[column], width = widths[column]),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    let rule: [String; N] = std::array::from_fn(|column| "─".repeat(widths[column]));
    let mut text = line(head.map(|(name, _)| name));
    text += &line(std::array::from_fn(|column| rule[column].as_str()));
    for row in rows {
        text += &line(std::array::from_fn(|column| row[column].as_str()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let head = [("name", Align::Left), ("ms", Align::Right)];
        let rows = [["é".to_owned(), "12.5".to_owned()], ["longer".to_owned(), "3".to_owned()]];
        assert_eq!(table(head, &rows), "name      ms\n──────  ────\né       12.5\nlonger     3\n");
    }
}
