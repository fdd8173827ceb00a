//! How far a list is looked through for rows that fit, because most filters have no index: each
//! order would have to write it. A list reads rows by the index that it has, a look at a time, and
//! leaves out what does not fit. It says how far it came, and where it goes on.

use std::time::{Duration, Instant};

/// Who waits for a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListPatience {
    /// Somebody in front of a page, which has to be there at once even if nothing fits.
    Page,
    /// A command or a file, which should be complete.
    Whole,
}

/// After this time a page begins no further look. Together with the last one, and with what else
/// the page reads, it stays below a tenth of a second.
const AT_ONCE: Duration = Duration::from_millis(30);
/// The maximum number of rows of a look. One of a page is small, because it is not interrupted. So
/// many rows are always looked through, however slow that is.
const MOST_OF_PAGE: usize = 300;
const MOST: usize = 1_000;
/// The maximum number of rows that are looked through.
const ROWS: usize = 20_000;

/// The looks of one list.
pub(super) struct ListLook {
    began: Instant,
    patience: ListPatience,
    limit: usize,
    size: usize,
    rows: usize,
    /// Whether the next look is taken however long the list has lasted.
    owed: bool,
}

impl ListLook {
    /// For a list of `limit` rows. If no filter leaves anything out, the first look finds them all.
    pub(super) fn new(patience: ListPatience, limit: usize) -> Self {
        Self {
            began: Instant::now(),
            patience,
            limit,
            size: limit.saturating_add(1),
            rows: 0,
            owed: false,
        }
    }

    /// Begins the next part of the list, which has the rest of the time and of the rows of the
    /// whole list. One small look is always left for it, so that each answer comes further than the
    /// one before.
    pub(super) fn next_part(&mut self) {
        self.size = self.limit.saturating_add(1);
        self.owed = true;
    }

    /// How many rows the next look reads; `None` if there should be none.
    pub(super) fn next(&mut self) -> Option<usize> {
        let has_looked = self.rows >= MOST_OF_PAGE;
        let (most, is_late) = match self.patience {
            ListPatience::Page => (MOST_OF_PAGE, has_looked && self.began.elapsed() > AT_ONCE),
            ListPatience::Whole => (MOST, false),
        };
        let is_over = is_late || self.rows >= ROWS;
        let is_owed = std::mem::take(&mut self.owed);
        if is_over && !is_owed {
            return None;
        }
        let size = self.size.min(most);
        self.size = size * 4;
        self.rows += size;
        Some(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_looks_through_some_rows_and_a_command_through_many() {
        let looks = |patience, limit| {
            let mut looking = ListLook::new(patience, limit);
            looking.began -= 2 * AT_ONCE;
            std::iter::from_fn(|| looking.next()).collect::<Vec<usize>>()
        };
        assert_eq!(looks(ListPatience::Page, 25), [26, 104, 300]);
        let whole = looks(ListPatience::Whole, 25);
        assert_eq!(whole[..4], [26, 104, 416, 1_000]);
        assert!((20_000..21_000).contains(&whole.iter().sum::<usize>()));
    }

    #[test]
    fn the_parts_of_a_list_share_its_time_and_its_rows_and_each_has_one_look() {
        for (patience, late) in [
            (ListPatience::Page, 2 * AT_ONCE),
            (ListPatience::Whole, AT_ONCE),
        ] {
            let mut looking = ListLook::new(patience, 25);
            looking.began -= late;
            let first: usize = std::iter::from_fn(|| looking.next()).sum();
            let mut rest = Vec::new();
            for _ in 0..2 {
                looking.next_part();
                rest.extend(std::iter::from_fn(|| looking.next()));
            }
            assert!(first >= MOST_OF_PAGE, "{first}");
            assert_eq!(rest, [26, 26], "{patience:?}");
        }
        // What the first part has left over is for the next one.
        let mut looking = ListLook::new(ListPatience::Whole, 25);
        assert_eq!(looking.next(), Some(26));
        looking.next_part();
        let rest: usize = std::iter::from_fn(|| looking.next()).sum();
        assert!((20_000..21_000).contains(&(rest + 26)), "{rest}");
    }
}
