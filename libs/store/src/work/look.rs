//! What a look at due work is asked and finds. `tests/schedules` compiles this file, too, so it
//! needs no database.

use domain::PartnerId;

/// Where a look at due work begins, and how much it returns. However many rows wait, a look reads
/// at most `limit` pairs of lane and partner and, for each kind, `rows_per_queue` rows of each of
/// them. Of these rows it returns at most `limit`.
#[derive(Clone, Debug, Default)]
pub struct WorkLook {
    /// The maximum number of rows to return, and of pairs of lane and partner to look at.
    pub limit: usize,
    /// The maximum number of rows of one queue, which is one partner in one lane.
    pub rows_per_queue: usize,
    /// The lane and partner after which the look begins; `None` begins with the first. See
    /// [`LookResult::after`].
    pub after: Option<(String, PartnerId)>,
    /// Lanes whose rows are left out, for example because the provisioner holds them back after
    /// failures.
    pub skip: Vec<String>,
}

/// A row that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueWork<Id> {
    pub id: Id,
    pub lane: String,
    pub partner_id: PartnerId,
}

/// The result of a look.
#[derive(Clone, Debug)]
pub struct LookResult<Row> {
    /// The due rows: the first one of each lane and partner, then the second one of each, and so
    /// on, so that no backlog hides another one.
    pub due: Vec<Row>,
    /// Where the next look begins; `None` after the last lane, so that the next look begins with
    /// the first one.
    pub after: Option<(String, PartnerId)>,
}

impl<Row> LookResult<Row> {
    /// What a look finds that is not made, because nothing could be claimed now.
    pub fn nothing() -> Self {
        Self {
            due: Vec::new(),
            after: None,
        }
    }

    pub fn map<To>(self, to: impl FnMut(Row) -> To) -> LookResult<To> {
        LookResult {
            due: self.due.into_iter().map(to).collect(),
            after: self.after,
        }
    }
}
