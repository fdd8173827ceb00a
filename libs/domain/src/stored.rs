//! A code as it was read from the database.
//!
//! Two versions of the services run side by side during an upgrade, so a row may hold a code that
//! only the newer version knows. That is an error of this row alone: it is shown by its name,
//! nothing is decided by it, and all other rows are read as before.

use std::{borrow::Cow, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::states::UnknownName;

/// A code of a column, decoded once when its row is read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stored<T> {
    Known(T),
    /// The name of a code that this version does not know.
    Unknown(String),
}

impl<T: Copy> Stored<T> {
    /// The code; `None` if this version does not know it.
    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(code) => Some(*code),
            Self::Unknown(_) => None,
        }
    }
}

impl<T: Copy> Stored<T> {
    /// The code, for a program that cannot go on without it.
    pub fn readable(&self) -> Result<T, UnknownName> {
        match self {
            Self::Known(code) => Ok(*code),
            Self::Unknown(name) => Err(UnknownName(name.clone(), "code in this version")),
        }
    }
}

impl<T: Copy + Into<&'static str>> Stored<T> {
    /// The name that is stored.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(code) => (*code).into(),
            Self::Unknown(name) => name,
        }
    }

    /// The code in words that the caller chooses by an exhaustive `match`, or what is wrong with
    /// it.
    pub fn told(&self, words: impl FnOnce(T) -> &'static str) -> Cow<'static, str> {
        match self {
            Self::Known(code) => words(*code).into(),
            Self::Unknown(name) => {
                format!("{name}, which only a newer version of this program can read").into()
            }
        }
    }
}

impl<T: FromStr> From<String> for Stored<T> {
    fn from(name: String) -> Self {
        match name.parse() {
            Ok(code) => Self::Known(code),
            Err(_) => Self::Unknown(name),
        }
    }
}

impl<T: PartialEq> PartialEq<T> for Stored<T> {
    fn eq(&self, other: &T) -> bool {
        matches!(self, Self::Known(code) if code == other)
    }
}

/// The name that is stored.
impl<T: Copy + Into<&'static str>> fmt::Display for Stored<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name that is stored.
impl<T: Copy + Into<&'static str>> Serialize for Stored<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Its name, as a response of a newer version may hold it, too.
impl<'de, T: FromStr> Deserialize<'de> for Stored<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(String::deserialize(deserializer)?.into())
    }
}

/// A code of a column that may be null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
#[serde(bound = "T: Copy + Into<&'static str>")]
pub struct MaybeStored<T>(pub Option<Stored<T>>);

impl<T: Copy> MaybeStored<T> {
    /// The code; `None` if there is none, or if this version does not know it.
    pub fn known(&self) -> Option<T> {
        self.0.as_ref().and_then(Stored::known)
    }

    /// Whether the column holds a code that this version does not know.
    pub fn is_unknown(&self) -> bool {
        matches!(self.0, Some(Stored::Unknown(_)))
    }
}

impl<T: Copy + Into<&'static str>> MaybeStored<T> {
    /// The name that is stored.
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_ref().map(Stored::as_str)
    }
}

impl<T: FromStr> From<Option<String>> for MaybeStored<T> {
    fn from(name: Option<String>) -> Self {
        Self(name.map(Stored::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlacementState;

    #[test]
    fn a_code_of_a_newer_version_is_named_and_decides_nothing() {
        let known = Stored::<PlacementState>::from("parked".to_owned());
        assert_eq!(known, PlacementState::Parked);
        let newer = Stored::<PlacementState>::from("paused".to_owned());
        assert_eq!((newer.known(), newer.as_str()), (None, "paused"));
        for state in PlacementState::ALL {
            assert_ne!(newer, state);
        }
        let told = newer.told(PlacementState::as_str);
        assert!(told.starts_with("paused, which only a newer version"));
        assert_eq!(serde_json::to_string(&newer).unwrap(), r#""paused""#);
        let none = MaybeStored::<PlacementState>::from(None);
        assert_eq!(serde_json::to_string(&none).unwrap(), "null");
    }
}
