//! Tables of text for a terminal.

/// Alignment of the cells of a column.
#[derive(Clone, Copy)]
pub(crate) enum CellAlignment {
    Left,
    Right,
}

/// Formats rows under a head. Each column is as wide as its widest cell.
pub(crate) fn table<Row: AsRef<[String]>>(head: &[(&str, CellAlignment)], rows: &[Row]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row.as_ref()[column].chars().count());
        cells.chain([head[column].0.chars().count()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).zip(head).map(|((cell, width), (_, align))| match align {
            CellAlignment::Left => format!("{cell:<width$}"),
            CellAlignment::Right => format!("{cell:>width$}"),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
    let mut text = line(&mut head.iter().map(|(name, _)| *name));
    text += &line(&mut rule.iter().map(String::as_str));
    for row in rows {
        text += &line(&mut row.as_ref().iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let head = [("name", CellAlignment::Left), ("ms", CellAlignment::Right)];
        let rows = [["é".to_owned(), "12.5".to_owned()], ["longer".to_owned(), "3".to_owned()]];
        assert_eq!(table(&head, &rows), "name      ms\n──────  ────\né       12.5\nlonger     3\n");
    }
}
