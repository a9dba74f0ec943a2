//! Gives back memory that only the start needed.
//!
//! A pilot reads its flags, renders a configuration and sets up its clients once. That code and its
//! tables stay mapped afterwards, several MiB beside a database that shares the memory limit. These
//! pages are the same as in the program's file, so the kernel reads one from there when it is
//! needed again, mostly out of its cache.

use std::{fs, io, ops::Range};

use super::sys;

/// Drops the pages that are the same as in their file. Call when a long quiet time begins.
///
/// # Errors
/// When the kernel does not tell what is mapped, or refuses.
pub fn release_program() -> io::Result<()> {
    let mappings = fs::read_to_string("/proc/self/smaps")?;
    find_unchanged(&mappings).into_iter().try_for_each(sys::drop_pages)
}

/// Returns the read-only mappings of files that have no page of their own. (Constants with
/// addresses in them are read-only too, but the relocation wrote them once.)
fn find_unchanged(mappings: &str) -> Vec<Range<usize>> {
    let (mut ranges, mut candidate) = (Vec::new(), None);
    for line in mappings.lines() {
        if let Some((range, of_file)) = parse_head(line) {
            candidate = of_file.then_some(range);
        } else if let Some(size) = line.strip_prefix("Anonymous:") {
            ranges.extend(candidate.take().filter(|_| size.trim() == "0 kB"));
        }
    }
    ranges
}

/// Reads the first line of a mapping: its range, and whether it is a file's and cannot be written.
fn parse_head(line: &str) -> Option<(Range<usize>, bool)> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hexadecimal = |text| usize::from_str_radix(text, 16).ok();
    let range = hexadecimal(start)?..hexadecimal(end)?;
    let rights = words.next()?;
    let is_file = words.nth(3).is_some_and(|path| path.starts_with('/'));
    Some((range, is_file && !rights.contains('w')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_in_nothing_from_its_file_is_given_back() {
        let mapping = |head: &str, anonymous: u32| {
            format!("{head}\nRss: 4 kB\nAnonymous:  {anonymous} kB\nVmFlags: rd mr\n")
        };
        let all = [
            mapping("1000-2000 r--p 00000000 fd:00 7    /bin/x", 0),
            mapping("2000-3000 r-xp 00001000 fd:00 7    /bin/x", 0),
            mapping("3000-4000 r--p 00002000 fd:00 7    /bin/x", 4),
            mapping("4000-5000 rw-p 00003000 fd:00 7    /bin/x", 0),
            mapping("5000-6000 r--p 00000000 00:00 0", 0),
            mapping("6000-7000 r-xp 00000000 00:00 0    [vdso]", 0),
        ];
        assert_eq!(find_unchanged(&all.concat()), [0x1000..0x2000, 0x2000..0x3000]);
    }

    #[test]
    fn a_mapping_that_is_not_explained_stays() {
        let untold = "1000-2000 r-xp 00000000 fd:00 7 /bin/x\nRss: 4 kB\n";
        assert!(find_unchanged(untold).is_empty());
    }

    #[test]
    fn the_program_runs_on_after_its_pages_were_given_back() {
        for _ in 0..3 {
            release_program().unwrap();
        }
    }
}
