//! Faults of the whole provider, which tests and operators set and lift at run time by `PUT
//! /faults`.
//!
//! They are in memory only, so a restart lifts all of them. `routes` applies them to calls of the
//! provider's API, but not to `/ledger` and `/faults`, so that a test can always look and lift
//! them. docs/sandbox.md describes each fault.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use runtime::lock;
use serde::{Deserialize, Serialize};

use crate::{garble::Garble, script};

const MAX_LATENCY_MS: u64 = 60_000;
const MAX_LAG_MS: u64 = 3_600_000;

/// The body of `PUT /faults` and of its answer. The new faults replace all old ones: a field that
/// the body leaves out means "no such fault".
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Every connection is closed without an answer, and nothing is carried out.
    pub down: bool,
    /// The share of calls that get HTTP 500 with code 9999; 0 to 1.
    pub error_rate: f64,
    /// The share of these calls that are carried out before the error; 0 to 1.
    pub error_buys: f64,
    /// The delay before each call is carried out, in milliseconds.
    pub latency_ms: u64,
    /// The share of orders that are carried out and never answered; 0 to 1.
    pub silent_rate: f64,
    /// How long a look-up does not find a new purchase, in milliseconds.
    pub not_found_lag_ms: u64,
    /// Overrules the setting `SANDBOX_DETECT_DUPLICATES`; null leaves it in force.
    pub detect_duplicates: Option<bool>,
    /// How answers about orders are garbled, by the name of the ordered option.
    pub garbled: BTreeMap<String, Garble>,
}

/// How a call ends that reaches the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Answered,
    /// The call gets 500. It was carried out before, or not at all.
    Error {
        carried_out: bool,
    },
    /// The call is carried out and never answered.
    Silence,
}

impl Faults {
    pub fn read(body: &[u8]) -> Result<Self, String> {
        // serde would also accept an array with the fields in their order.
        if body.trim_ascii_start().starts_with(b"[") {
            return Err("The body is not a set of faults: it is an array".into());
        }
        let faults: Self = serde_json::from_slice(body).map_err(|error| {
            // serde repeats values from the body; long ones are cut.
            let reason: String = error.to_string().chars().take(300).collect();
            format!("The body is not a set of faults: {reason}")
        })?;
        faults.check()?;
        Ok(faults)
    }

    fn check(&self) -> Result<(), String> {
        for (field, share) in [
            ("error_rate", self.error_rate),
            ("error_buys", self.error_buys),
            ("silent_rate", self.silent_rate),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("{field} must be between 0 and 1"));
            }
        }
        if self.error_rate + self.silent_rate > 1.0 {
            return Err("error_rate and silent_rate together must be at most 1".into());
        }
        for (field, value, most) in [
            ("latency_ms", self.latency_ms, MAX_LATENCY_MS),
            ("not_found_lag_ms", self.not_found_lag_ms, MAX_LAG_MS),
        ] {
            if value > most {
                return Err(format!("{field} must be at most {most}"));
            }
        }
        if let Some(name) = self.garbled.keys().find(|name| !script::is_scripted(name)) {
            let name: String = name.chars().take(100).collect();
            return Err(format!(
                "garbled names {name:?}, which is not a scripted option"
            ));
        }
        Ok(())
    }

    /// The kinds of faults, and whether each is in force, for the metric.
    pub fn in_force(&self) -> [(&'static str, bool); 7] {
        [
            ("down", self.down),
            ("error", self.error_rate > 0.0),
            ("silence", self.silent_rate > 0.0),
            ("latency", self.latency_ms > 0),
            ("not_found_lag", self.not_found_lag_ms > 0),
            ("duplicates", self.detect_duplicates == Some(false)),
            ("garbled", !self.garbled.is_empty()),
        ]
    }

    /// How a call ends. The caller draws `lot` and `second_lot` at random, from 0 up to but not
    /// including 1: the first one decides about an error or silence, and the second one whether an
    /// error comes after the call was carried out.
    pub fn ending(&self, is_order: bool, lot: f64, second_lot: f64) -> Ending {
        if lot < self.error_rate {
            Ending::Error {
                carried_out: second_lot < self.error_buys,
            }
        } else if is_order && lot < self.error_rate + self.silent_rate {
            Ending::Silence
        } else {
            Ending::Answered
        }
    }
}

/// The current faults. While there are none, which is the usual case, a look costs one atomic load.
#[derive(Default)]
pub struct Switch {
    any: AtomicBool,
    faults: Mutex<Faults>,
}

impl Switch {
    /// The faults, if there are any.
    pub fn faults(&self) -> Option<Faults> {
        self.any.load(Ordering::Relaxed).then(|| self.get())
    }

    /// The faults, even if there are none.
    pub fn get(&self) -> Faults {
        lock(&self.faults).clone()
    }

    pub fn set(&self, faults: Faults) {
        let mut current = lock(&self.faults);
        self.any
            .store(faults != Faults::default(), Ordering::Relaxed);
        *current = faults;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_faults_is_said() {
        for (body, message) in testkit::rows! {
            "" => "EOF while parsing";
            "[]" => "not a set of faults";
            r#"{"up":true}"# => "unknown field `up`, expected one of `down`";
            r#"{"down":1}"# => "invalid type: integer `1`";
            r#"{"down":true,"down":true}"# => "duplicate field `down`";
            r#"{"error_rate":1.01}"# => "error_rate must be between 0 and 1";
            r#"{"error_rate":1e999}"# => "number out of range";
            r#"{"error_buys":-0.1}"# => "error_buys must be between 0 and 1";
            r#"{"silent_rate":2}"# => "silent_rate must be between 0 and 1";
            r#"{"error_rate":0.6,"silent_rate":0.6}"# => "together must be at most 1";
            r#"{"latency_ms":-1}"# => "invalid value: integer `-1`";
            r#"{"latency_ms":60001}"# => "latency_ms must be at most 60000";
            r#"{"not_found_lag_ms":3600001}"# => "not_found_lag_ms must be at most 3600000";
            r#"{"detect_duplicates":"no"}"# => "invalid type: string";
            r#"{"garbled":{"ready":"odd"}}"# => "unknown variant `odd`";
            r#"{"garbled":{"other":"huge"}}"# => "not a scripted option";
        } {
            let error = Faults::read(body.as_bytes()).unwrap_err();
            assert!(error.contains(message), "{body}: {error}");
        }
        assert_eq!(Faults::read(b"{}"), Ok(Faults::default()));
        let text = serde_json::to_vec(&Faults::default()).unwrap();
        assert_eq!(
            Faults::read(&text),
            Ok(Faults::default()),
            "an answer can be sent back"
        );
    }

    #[test]
    fn shares_divide_the_calls() {
        let faults = Faults {
            error_rate: 0.25,
            error_buys: 0.5,
            silent_rate: 0.25,
            ..Faults::default()
        };
        let error = |carried_out| Ending::Error { carried_out };
        assert_eq!(faults.ending(true, 0.0, 0.49), error(true));
        assert_eq!(faults.ending(false, 0.24, 0.5), error(false));
        assert_eq!(faults.ending(true, 0.25, 0.0), Ending::Silence);
        assert_eq!(faults.ending(false, 0.25, 0.0), Ending::Answered);
        assert_eq!(faults.ending(true, 0.5, 0.0), Ending::Answered);
        assert_eq!(Faults::default().ending(true, 0.0, 0.0), Ending::Answered);
        let all = Faults {
            error_rate: 1.0,
            ..Faults::default()
        };
        assert_eq!(all.ending(true, 0.999_999, 0.0), error(false));
    }
}
