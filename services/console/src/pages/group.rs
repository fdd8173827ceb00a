//! A form that settles several things, each in a transaction of its own. If the database fails in
//! the middle, some of them are recorded and some are not, and whoever has sent the form has to
//! know which.

use crate::{
    access::Act,
    format::{counted, number},
    problem::Problem,
    view::local_path,
};

/// How far such a form has come.
pub(crate) struct Group<'a> {
    /// What one of the things is called, and several.
    noun: (&'static str, &'static str),
    chosen: usize,
    done: usize,
    /// Those that had changed since the page was shown, so that nothing was done to them.
    changed: Vec<&'a str>,
}

impl<'a> Group<'a> {
    pub(crate) fn new(noun: (&'static str, &'static str), chosen: usize) -> Self {
        Self {
            noun,
            chosen,
            done: 0,
            changed: Vec::new(),
        }
    }

    /// Notes what came of the next one, whose name is `name`. If the database has failed, the form
    /// ends here: if it does not answer, whatever is left would fail, too, and perhaps after a long
    /// wait; and what it has refused somebody has to look at.
    pub(crate) fn note<R, E>(
        &mut self,
        act: &Act<R>,
        name: &'a str,
        settled: Result<(), E>,
        of_database: impl FnOnce(E) -> Option<pg::Error>,
    ) -> Result<bool, Problem> {
        let Err(error) = settled else {
            self.done += 1;
            return Ok(true);
        };
        if let Some(cause) = of_database(error) {
            return Err(self.broken_off(act, name, cause));
        }
        self.changed.push(name);
        Ok(false)
    }

    /// How many were recorded.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Which ones had changed, as a sentence after another one; empty if none had.
    pub(crate) fn not_changed(&self) -> String {
        if self.changed.is_empty() {
            return String::new();
        }
        format!(
            " Not changed, look at their pages: {}.",
            self.changed.join(", ")
        )
    }

    fn broken_off<R>(&self, act: &Act<R>, name: &str, cause: pg::Error) -> Problem {
        let (one, several) = self.noun;
        let tried = self.done + self.changed.len() + 1;
        let why = if cause.is_transient() {
            "the database did not answer"
        } else {
            "the database refused it, and the console's log says why; leave it out to settle the rest"
        };
        let rest = match self.chosen - tried {
            0 => "",
            _ => " Nothing of the rest was changed.",
        };
        Problem::BrokenOff {
            text: format!(
                "{} of {} {} recorded. Number {}, {name}, failed because {why}. Its page says whether it was recorded all \
                 the same.{rest}{}",
                number(self.done),
                counted(self.chosen, one, several),
                if self.done == 1 { "was" } else { "were" },
                number(tried),
                self.not_changed()
            ),
            back: local_path(act.fields.get("back")),
            cause,
        }
    }
}
