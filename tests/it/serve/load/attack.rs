//! What became of the requests of an attack.

use std::collections::BTreeMap;

/// Types of HTTP/2 frames.
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
/// Length of the head of an HTTP/2 frame.
const FRAME_HEAD: usize = 9;

/// Counts of an attack's requests.
#[derive(Clone, Debug, Default)]
pub(super) struct AttackTally {
    /// Answers by their codes.
    answers: BTreeMap<u16, usize>,
    /// Answers over HTTP/2 of which the code was not read.
    heads: usize,
    /// Streams that the server reset, or whose connection it said to end.
    resets: usize,
    /// Connections that ended without a word, or that the server never took.
    cut: usize,
}

impl AttackTally {
    pub(super) fn sum(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut sum = Self::default();
        for Self { answers, heads, resets, cut } in parts {
            for (code, count) in answers {
                *sum.answers.entry(code).or_default() += count;
            }
            (sum.heads, sum.resets, sum.cut) =
                (sum.heads + heads, sum.resets + resets, sum.cut + cut);
        }
        sum
    }

    pub(super) fn answer(&mut self, code: u16) {
        *self.answers.entry(code).or_default() += 1;
    }

    pub(super) fn cut(&mut self) {
        self.cut += 1;
    }

    /// Counts what came over an HTTP/2 connection on which so many requests were sent.
    pub(super) fn http2(&mut self, bytes: &[u8], sent: usize) {
        let kinds = frames(bytes);
        let count = |kind: u8| kinds.iter().copied().filter(|other| *other == kind).count();
        let heads = count(HEADERS).min(sent);
        let resets = if count(GOAWAY) > 0 { sent } else { count(RST_STREAM) };
        let resets = resets.min(sent - heads);
        (self.heads, self.resets) = (self.heads + heads, self.resets + resets);
        self.cut += sent - heads - resets;
    }

    /// Tells whether so many requests over HTTP/2 were answered or reset.
    pub(super) fn is_answered(bytes: &[u8], sent: usize) -> bool {
        let mut tally = Self::default();
        tally.http2(bytes, sent);
        tally.cut == 0
    }

    /// The codes that were answered, without that of too many requests.
    pub(super) fn codes_but_429(&self) -> Vec<u16> {
        self.answers.keys().copied().filter(|code| *code != 429).collect()
    }

    /// Requests that did what they asked for.
    pub(super) fn served(&self) -> usize {
        self.answers.range(200..300).map(|(_, count)| count).sum()
    }

    /// Requests that were read and got an error.
    pub(super) fn refused(&self) -> usize {
        self.landed() - self.served()
    }

    /// Connections that ended without an answer.
    pub(super) fn lost(&self) -> usize {
        self.cut
    }

    /// Requests that the server read: neither cut nor turned away for their number.
    pub(super) fn landed(&self) -> usize {
        let answers = self.answers.iter().filter(|(code, _)| **code != 429);
        answers.map(|(_, count)| count).sum::<usize>() + self.heads + self.resets
    }

    pub(super) fn print(&self, name: &str) {
        let Self { answers, heads, resets, cut } = self;
        print_figures(&format!(
            "{name}: by code {answers:?}, {heads} answered, {resets} reset, {cut} cut"
        ));
    }
}

#[expect(clippy::print_stderr, reason = "figures for whoever wants to see them")]
pub(super) fn print_figures(text: &str) {
    eprintln!("{text}");
}

/// Returns the types of the frames of an HTTP/2 connection.
fn frames(mut bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let [a, b, c, kind, ..] = bytes {
        kinds.push(*kind);
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        bytes = bytes.get(FRAME_HEAD + length..).unwrap_or_default();
    }
    kinds
}
