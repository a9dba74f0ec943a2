//! Lines, tables and colours of answers.
//!
//! What is shown comes from objects that other programs wrote. Characters that would move a
//! terminal's cursor or change its colour are removed here, once.

/// What the output device can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputStyle {
    pub colour: bool,
    /// Characters in a line; lines are not broken when absent.
    pub width: Option<usize>,
}

/// The meaning of a text, shown as its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Title,
    Good,
    /// Something that is not as it should be, or not yet.
    Care,
    Bad,
    Faint,
}

impl Tone {
    fn ansi_code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Title => "1",
            Self::Good => "32",
            Self::Care => "33",
            Self::Bad => "31",
            Self::Faint => "2",
        }
    }
}

/// A text and its tone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StyledText {
    pub text: String,
    pub tone: Tone,
}

pub fn cell(text: impl Into<String>, tone: Tone) -> StyledText {
    StyledText { text: text.into(), tone }
}

impl<T: Into<String>> From<T> for StyledText {
    fn from(text: T) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

/// A table with a head. A table that is too wide for its line loses columns by their rank, the
/// highest first; columns of rank 0 stay.
#[derive(Clone, Debug, Default)]
pub struct TextTable {
    columns: Vec<(&'static str, u8)>,
    rows: Vec<Vec<StyledText>>,
}

/// Number of spaces between two columns, as in kubectl's tables.
const GAP: usize = 3;
/// Least width of the last column; other columns are left out before it gets narrower.
const LAST: usize = 36;

impl TextTable {
    pub fn new(columns: &[(&'static str, u8)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, which has one cell for each column.
    pub fn push(&mut self, row: Vec<StyledText>) {
        self.rows.push(row);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Removes those of the named columns in which every cell is empty.
    #[must_use]
    pub fn without_empty(mut self, names: &[&str]) -> Self {
        let is_empty_column = |index: usize| self.rows.iter().all(|row| row[index].text.is_empty());
        let removal_flags: Vec<bool> = (0..self.columns.len())
            .map(|index| names.contains(&self.columns[index].0) && is_empty_column(index))
            .collect();
        let is_kept = |index: usize| !removal_flags[index];
        self.columns = retain_columns(self.columns, is_kept);
        self.rows = self.rows.into_iter().map(|row| retain_columns(row, is_kept)).collect();
        self
    }
}

fn retain_columns<T>(list: Vec<T>, is_kept: impl Fn(usize) -> bool) -> Vec<T> {
    list.into_iter()
        .enumerate()
        .filter(|(index, _)| is_kept(*index))
        .map(|(_, item)| item)
        .collect()
}

/// An answer that is being written.
#[derive(Debug)]
pub struct Screen {
    style: OutputStyle,
    text: String,
}

impl Screen {
    pub fn new(style: OutputStyle) -> Self {
        Self { style, text: String::new() }
    }

    pub fn finish(self) -> String {
        self.text
    }

    pub fn blank(&mut self) {
        self.text.push('\n');
    }

    /// Adds one line of several parts.
    pub fn line(&mut self, parts: &[StyledText]) {
        for part in parts {
            self.push_text(&clean_text(&part.text), part.tone);
        }
        self.text.push('\n');
    }

    /// Adds a text on lines of its own, indented.
    pub fn paragraph(&mut self, indent: usize, text: &str, tone: Tone) {
        let text = clean_text(text.trim_end());
        let limit =
            self.style.width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(20));
        for line in wrap_text(&text, limit) {
            self.text.extend(std::iter::repeat_n(' ', indent));
            self.push_text(line, tone);
            self.text.push('\n');
        }
    }

    pub fn table(&mut self, indent: usize, table: &TextTable) {
        let TextTable { columns, rows } = table;
        let rows: Vec<Vec<StyledText>> = rows
            .iter()
            .map(|row| {
                row.iter().map(|one| cell(clean_text(one.text.trim_end()), one.tone)).collect()
            })
            .collect();
        let column_width = |index: usize| {
            let cells = rows.iter().map(|row| char_count(&row[index].text));
            cells.chain([char_count(columns[index].0)]).max().unwrap_or_default()
        };
        let mut visible_columns: Vec<usize> = (0..columns.len()).collect();
        while let Some(width) = self.style.width {
            // The last column may wrap, so it needs only its least width.
            let shrinkable_width =
                visible_columns.last().map_or(0, |at| column_width(*at).saturating_sub(LAST));
            let needed_width: usize =
                visible_columns.iter().map(|at| column_width(*at) + GAP).sum::<usize>() + indent;
            let needed_width = needed_width - shrinkable_width;
            let dropped_column = visible_columns.iter().copied().max_by_key(|at| columns[*at].1);
            match dropped_column {
                Some(dropped_column)
                    if needed_width > width + GAP && columns[dropped_column].1 > 0 =>
                {
                    visible_columns.retain(|at| *at != dropped_column);
                }
                _ => break,
            }
        }
        let head: Vec<StyledText> =
            columns.iter().map(|(name, _)| cell(*name, Tone::Faint)).collect();
        for row in std::iter::once(&head).chain(&rows) {
            self.text.extend(std::iter::repeat_n(' ', indent));
            let mut column = indent;
            for (place, index) in visible_columns.iter().enumerate() {
                let StyledText { text, tone } = &row[*index];
                if place + 1 == visible_columns.len() {
                    self.push_last_cell(text, *tone, column);
                    break;
                }
                self.push_text(text, *tone);
                let padding = column_width(*index) + GAP - char_count(text);
                self.text.extend(std::iter::repeat_n(' ', padding));
                column += column_width(*index) + GAP;
            }
            while self.text.ends_with(' ') {
                self.text.pop();
            }
            self.text.push('\n');
        }
    }

    /// Writes the last cell of a row, which wraps below itself where the line ends.
    fn push_last_cell(&mut self, text: &str, tone: Tone, column: usize) {
        let limit =
            self.style.width.map_or(usize::MAX, |width| width.saturating_sub(column).max(20));
        for (number, line) in wrap_text(text, limit).into_iter().enumerate() {
            if number > 0 {
                self.text.push('\n');
                self.text.extend(std::iter::repeat_n(' ', column));
            }
            self.push_text(line, tone);
        }
    }

    fn push_text(&mut self, text: &str, tone: Tone) {
        if self.style.colour && tone != Tone::Plain && !text.is_empty() {
            for part in ["\x1b[", tone.ansi_code(), "m", text, "\x1b[0m"] {
                self.text.push_str(part);
            }
        } else {
            self.text.push_str(text);
        }
    }
}

fn char_count(text: &str) -> usize {
    text.chars().count()
}

/// Replaces the control characters of a text that a terminal would obey by spaces.
pub fn clean_text(text: &str) -> String {
    let is_unsafe =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if is_unsafe(c) { ' ' } else { c }).collect()
}

/// Splits a text into lines of at most `limit` characters, at spaces where there are any.
fn wrap_text(text: &str, limit: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while char_count(rest) > limit {
        let end = rest.char_indices().nth(limit).map_or(rest.len(), |(index, _)| index);
        let space = rest[..end].rfind(' ').filter(|at| *at > 0);
        // A space right after the line is as good a place to break.
        let cut = if rest[end..].starts_with(' ') { end } else { space.unwrap_or(end) };
        lines.push(rest[..cut].trim_end());
        rest = rest[cut..].trim_start();
    }
    lines.push(rest);
    lines
}

/// Writes a size in bytes as `1.2 GiB`.
pub fn format_bytes(bytes: i64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut whole, mut rest, mut unit) = (bytes.max(0), 0, 0);
    while whole >= 1024 && unit + 1 < UNITS.len() {
        (rest, whole) = (whole % 1024, whole / 1024);
        unit += 1;
    }
    if unit == 0 || whole >= 10 {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{whole}.{} {}", rest * 10 / 1024, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(width: usize, draw: impl Fn(&mut Screen)) -> String {
        let mut screen = Screen::new(OutputStyle { colour: false, width: Some(width) });
        draw(&mut screen);
        screen.finish()
    }

    #[test]
    fn nothing_that_a_terminal_obeys_is_shown() {
        let hostile = "a\u{1b}[2Jb\r\nc\u{202e}d\u{9b}e\t";
        let mut screen = Screen::new(OutputStyle { colour: true, width: None });
        screen.line(&[hostile.into()]);
        screen.paragraph(0, hostile, Tone::Plain);
        let mut table = TextTable::new(&[("A", 0), ("B", 0)]);
        table.push(vec![hostile.into(), hostile.into()]);
        screen.table(0, &table);
        let text = screen.finish();
        assert!(text.contains("a [2Jb  c d e"), "{text:?}");
        // The colours of the table's head are our own, so they are removed before the check.
        let text =
            text.replace("\u{1b}[2mA", "").replace("\u{1b}[2mB", "").replace("\u{1b}[0m", "");
        assert!(
            !text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')),
            "{text:?}"
        );
    }

    #[test]
    fn a_table_gives_up_columns_by_rank_and_wraps_its_last() {
        let mut table = TextTable::new(&[("NAME", 0), ("MACHINE", 2), ("NOTE", 1), ("MESSAGE", 0)]);
        let message = "one two three four five six seven eight nine ten";
        table.push(vec!["demo".into(), "worker-1".into(), "n".into(), message.into()]);
        assert_eq!(
            drawn(61, |screen| screen.table(0, &table)),
            "NAME   MACHINE    NOTE   MESSAGE\n\
             demo   worker-1   n      one two three four five six seven\n\
             \x20                        eight nine ten\n"
        );
        assert_eq!(
            drawn(52, |screen| screen.table(0, &table)),
            "NAME   NOTE   MESSAGE\n\
             demo   n      one two three four five six seven\n\
             \x20             eight nine ten\n"
        );
        assert_eq!(
            drawn(45, |screen| screen.table(0, &table)),
            "NAME   MESSAGE\n\
             demo   one two three four five six seven\n\
             \x20      eight nine ten\n"
        );
    }

    #[test]
    fn sentences_break_at_spaces_and_long_words_anywhere() {
        assert_eq!(wrap_text("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap_text("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap_text("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap_text("äöüäöü", 4), ["äöüä", "öü"]);
        assert_eq!(wrap_text("", 4), [""]);
    }

    #[test]
    fn bytes_read_as_people_say_them() {
        for (count, text) in [
            (-1, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (10 << 20, "10 MiB"),
            ((9 << 30) + (1 << 29), "9.5 GiB"),
            (i64::MAX, "8191 PiB"),
        ] {
            assert_eq!(format_bytes(count), text);
        }
    }

    #[test]
    fn colours_are_only_where_they_are_wanted() {
        let line = [cell("up", Tone::Good)];
        assert_eq!(drawn(80, |screen| screen.line(&line)), "up\n");
        let mut screen = Screen::new(OutputStyle { colour: true, width: None });
        screen.line(&line);
        assert_eq!(screen.finish(), "\u{1b}[32mup\u{1b}[0m\n");
    }
}
