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
    fn code(self) -> &'static str {
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
        let empty = |at: usize| self.rows.iter().all(|row| row[at].text.is_empty());
        let gone: Vec<bool> = (0..self.columns.len())
            .map(|at| names.contains(&self.columns[at].0) && empty(at))
            .collect();
        let kept = |at: usize| !gone[at];
        self.columns = retained(self.columns, kept);
        self.rows = self.rows.into_iter().map(|row| retained(row, kept)).collect();
        self
    }
}

fn retained<T>(list: Vec<T>, kept: impl Fn(usize) -> bool) -> Vec<T> {
    list.into_iter().enumerate().filter(|(at, _)| kept(*at)).map(|(_, item)| item).collect()
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
            self.put(&clean(&part.text), part.tone);
        }
        self.text.push('\n');
    }

    /// Adds a text on lines of its own, indented.
    pub fn paragraph(&mut self, indent: usize, text: &str, tone: Tone) {
        let text = clean(text.trim_end());
        let room =
            self.style.width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(20));
        for line in wrapped(&text, room) {
            self.text.extend(std::iter::repeat_n(' ', indent));
            self.put(line, tone);
            self.text.push('\n');
        }
    }

    pub fn table(&mut self, indent: usize, table: &TextTable) {
        let TextTable { columns, rows } = table;
        let rows: Vec<Vec<StyledText>> = rows
            .iter()
            .map(|row| row.iter().map(|one| cell(clean(one.text.trim_end()), one.tone)).collect())
            .collect();
        let wide = |at: usize| {
            let cells = rows.iter().map(|row| length(&row[at].text));
            cells.chain([length(columns[at].0)]).max().unwrap_or_default()
        };
        let mut shown: Vec<usize> = (0..columns.len()).collect();
        while let Some(width) = self.style.width {
            // The last column may wrap, so it needs only its least width.
            let last = shown.last().map_or(0, |at| wide(*at).saturating_sub(LAST));
            let needed: usize = shown.iter().map(|at| wide(*at) + GAP).sum::<usize>() + indent;
            let needed = needed - last;
            let least = shown.iter().copied().max_by_key(|at| columns[*at].1);
            match least {
                Some(least) if needed > width + GAP && columns[least].1 > 0 => {
                    shown.retain(|at| *at != least);
                }
                _ => break,
            }
        }
        let head: Vec<StyledText> =
            columns.iter().map(|(name, _)| cell(*name, Tone::Faint)).collect();
        for row in std::iter::once(&head).chain(&rows) {
            self.text.extend(std::iter::repeat_n(' ', indent));
            let mut column = indent;
            for (place, at) in shown.iter().enumerate() {
                let StyledText { text, tone } = &row[*at];
                if place + 1 == shown.len() {
                    self.last(text, *tone, column);
                    break;
                }
                self.put(text, *tone);
                let padding = wide(*at) + GAP - length(text);
                self.text.extend(std::iter::repeat_n(' ', padding));
                column += wide(*at) + GAP;
            }
            while self.text.ends_with(' ') {
                self.text.pop();
            }
            self.text.push('\n');
        }
    }

    /// Writes the last cell of a row, which wraps below itself where the line ends.
    fn last(&mut self, text: &str, tone: Tone, column: usize) {
        let room =
            self.style.width.map_or(usize::MAX, |width| width.saturating_sub(column).max(20));
        for (number, line) in wrapped(text, room).into_iter().enumerate() {
            if number > 0 {
                self.text.push('\n');
                self.text.extend(std::iter::repeat_n(' ', column));
            }
            self.put(line, tone);
        }
    }

    fn put(&mut self, text: &str, tone: Tone) {
        if self.style.colour && tone != Tone::Plain && !text.is_empty() {
            for part in ["\x1b[", tone.code(), "m", text, "\x1b[0m"] {
                self.text.push_str(part);
            }
        } else {
            self.text.push_str(text);
        }
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Replaces the control characters of a text that a terminal would obey by spaces.
pub fn clean(text: &str) -> String {
    let breaks =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if breaks(c) { ' ' } else { c }).collect()
}

/// Splits a text into lines of at most `room` characters, at spaces where there are any.
fn wrapped(text: &str, room: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while length(rest) > room {
        let end = rest.char_indices().nth(room).map_or(rest.len(), |(at, _)| at);
        let space = rest[..end].rfind(' ').filter(|at| *at > 0);
        // A space right after the line is as good a place to break.
        let at = if rest[end..].starts_with(' ') { end } else { space.unwrap_or(end) };
        lines.push(rest[..at].trim_end());
        rest = rest[at..].trim_start();
    }
    lines.push(rest);
    lines
}

/// Writes a size in bytes as `1.2 GiB`.
pub fn bytes(bytes: i64) -> String {
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
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrapped("äöüäöü", 4), ["äöüä", "öü"]);
        assert_eq!(wrapped("", 4), [""]);
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
            assert_eq!(bytes(count), text);
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
