//! The health of an endpoint: what its failures, its acknowledgements, its partner and operators
//! make of it.
//!
//! ```text
//! health        event                    next health
//! open          failures                 open, told as failing from half of the limit on; blocked at it
//! open          acknowledgement          open, its failures are forgotten
//! blocked       time                     nothing: only the time until which it is blocked passes
//! blocked       probe, after that time   blocked while the probe is under way
//! blocked       its probe fails          blocked for twice as long
//! blocked       other failures           nothing, because they began before the block
//! blocked       acknowledgement          open
//! any           pause                    paused
//! paused        anything but a resume    paused
//! paused        resume                   open
//! any           new URL of an operator   open, unless it is paused
//! blocked       new URL of its partner   blocked until now, so that the next webhook is its probe
//! ```
//!
//! [`Health::after`] is the specification. In production the statements of
//! `store::deliveries::endpoints` move the rows, many in one statement; its test `health` compares
//! each statement with this function. What the partner was told is part of the health, so that it
//! is told changes only.

use std::time::Duration;

use time::OffsetDateTime;

use crate::DeliveryId;

/// When an endpoint is blocked, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPolicy {
    /// How many failures in a row block an endpoint; 0 disables blocks, and then no failure counts.
    pub failures: u32,
    /// The duration of the first block. It doubles after each failed probe.
    pub first: Duration,
    /// The upper limit of that duration.
    pub longest: Duration,
}

/// Whether webhooks are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointGate {
    #[default]
    Open,
    /// Nothing but tests is sent until this time. Afterwards one webhook is sent as a probe.
    BlockedUntil(OffsetDateTime),
    /// Nothing is sent until somebody resumes it. Its partner may do so if it has paused it.
    Paused { by_partner: bool },
}

/// What the partner was told of the health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedHealth {
    /// Half of the failures that block it have happened.
    Failing,
    Blocked,
}

/// The columns of the row that the transitions depend on. The default is that of a new endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub gate: EndpointGate,
    /// Failures since the last acknowledgement, counted until it is blocked.
    pub failures: u32,
    /// How often it was blocked since then.
    pub blocks: u32,
    /// The delivery that tests whether it works again.
    pub probe: Option<DeliveryId>,
    /// Since when it fails.
    pub failing_since: Option<OffsetDateTime>,
    /// It outlives a block that an operator ends, until the endpoint acknowledges something.
    pub told: Option<ReportedHealth>,
}

/// Something that happens to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointEvent {
    /// Attempts failed, and none of the same batch was acknowledged.
    Failed {
        attempts: u32,
        /// The probe is among them.
        probe: bool,
    },
    Acknowledged,
    /// A delivery is claimed whose endpoint was blocked until now. `until` is the end of its lease.
    Probe {
        delivery: DeliveryId,
        until: OffsetDateTime,
    },
    Pause {
        by_partner: bool,
    },
    /// Ends a pause, and a block if an operator does it.
    Resume {
        by_partner: bool,
    },
    /// The URL was set.
    NewUrl {
        by_partner: bool,
    },
}

/// What the partner is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthNotice {
    Failing,
    Blocked,
    Recovered,
}

impl Health {
    /// The health after an event at the time `now`, and what the partner is to be told of it. An
    /// event that does not apply changes nothing.
    pub fn after(
        self,
        event: EndpointEvent,
        now: OffsetDateTime,
        policy: BlockPolicy,
    ) -> (Self, Option<HealthNotice>) {
        match event {
            EndpointEvent::Failed { attempts, probe } => self.failed(attempts, probe, now, policy),
            EndpointEvent::Acknowledged => self.acknowledged(),
            EndpointEvent::Probe { delivery, until } => (self.probing(delivery, until, now), None),
            EndpointEvent::Pause { by_partner } => (self.paused(by_partner), None),
            EndpointEvent::Resume { by_partner } => (self.resumed(by_partner), None),
            EndpointEvent::NewUrl { by_partner } => (self.moved(by_partner, now), None),
        }
    }

    fn failed(
        self,
        attempts: u32,
        probe: bool,
        now: OffsetDateTime,
        policy: BlockPolicy,
    ) -> (Self, Option<HealthNotice>) {
        let counts = match self.gate {
            _ if policy.failures == 0 => false,
            EndpointGate::Open => true,
            EndpointGate::BlockedUntil(_) => probe,
            EndpointGate::Paused { .. } => false,
        };
        if !counts {
            return (self, None);
        }
        let failures = self.failures.saturating_add(attempts);
        let blocked = self.probe.is_some() || failures >= policy.failures;
        let told = if blocked {
            Some(ReportedHealth::Blocked)
        } else if failures.saturating_mul(2) >= policy.failures {
            self.told.or(Some(ReportedHealth::Failing))
        } else {
            self.told
        };
        let fails_anew =
            self.failures == 0 && self.gate == EndpointGate::Open && self.told.is_none();
        let next = Self {
            gate: if blocked {
                EndpointGate::BlockedUntil(now + policy.block(self.blocks))
            } else {
                EndpointGate::Open
            },
            failures,
            blocks: self.blocks + u32::from(blocked),
            probe: None,
            failing_since: self.failing_since.filter(|_| !fails_anew).or(Some(now)),
            told,
        };
        let notice = match told {
            _ if told == self.told => None,
            Some(ReportedHealth::Blocked) => Some(HealthNotice::Blocked),
            Some(ReportedHealth::Failing) => Some(HealthNotice::Failing),
            None => None,
        };
        (next, notice)
    }

    fn acknowledged(self) -> (Self, Option<HealthNotice>) {
        // Nothing is written for an endpoint that does not fail, which is nearly every one.
        let is_healthy =
            self.gate == EndpointGate::Open && self.failures == 0 && self.told.is_none();
        if is_healthy || matches!(self.gate, EndpointGate::Paused { .. }) {
            return (self, None);
        }
        (Self::default(), self.told.map(|_| HealthNotice::Recovered))
    }

    fn probing(self, delivery: DeliveryId, until: OffsetDateTime, now: OffsetDateTime) -> Self {
        match self.gate {
            EndpointGate::BlockedUntil(blocked) if blocked <= now => Self {
                gate: EndpointGate::BlockedUntil(until),
                probe: Some(delivery),
                ..self
            },
            _ => self,
        }
    }

    /// A pause of an operator wins over one of the partner.
    fn paused(self, by_partner: bool) -> Self {
        match self.gate {
            EndpointGate::Paused { .. } if by_partner => self,
            _ => Self {
                gate: EndpointGate::Paused { by_partner },
                probe: None,
                ..self
            },
        }
    }

    fn resumed(self, by_partner: bool) -> Self {
        match (by_partner, self.gate) {
            (true, EndpointGate::Paused { by_partner: true }) => Self {
                gate: EndpointGate::Open,
                ..self
            },
            (true, _) => self,
            (false, _) => self.forgotten(EndpointGate::Open),
        }
    }

    fn moved(self, by_partner: bool, now: OffsetDateTime) -> Self {
        match (by_partner, self.gate) {
            (true, EndpointGate::BlockedUntil(until)) => Self {
                gate: EndpointGate::BlockedUntil(until.min(now)),
                ..self
            },
            (true, _) => self,
            (false, paused @ EndpointGate::Paused { .. }) => self.forgotten(paused),
            (false, _) => self.forgotten(EndpointGate::Open),
        }
    }

    /// The counts begin anew. What the partner was told stays, until the endpoint acknowledges
    /// something.
    fn forgotten(self, gate: EndpointGate) -> Self {
        Self {
            gate,
            failures: 0,
            blocks: 0,
            probe: None,
            ..self
        }
    }
}

impl BlockPolicy {
    /// How long an endpoint is blocked that was blocked `blocks` times before. The exponent is
    /// bounded, because larger powers of two are no longer than `longest` anyway.
    fn block(self, blocks: u32) -> Duration {
        let doubled =
            self.first.as_secs_f64() * 2_f64.powi(i32::try_from(blocks.min(30)).unwrap_or(30));
        Duration::from_secs_f64(doubled.min(self.longest.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-26 12:00 UTC);
    const POLICY: BlockPolicy = BlockPolicy {
        failures: 4,
        first: Duration::from_secs(5),
        longest: Duration::from_mins(5),
    };

    #[test]
    fn without_blocks_no_failure_counts() {
        let policy = BlockPolicy {
            failures: 0,
            ..POLICY
        };
        let failed = EndpointEvent::Failed {
            attempts: 100,
            probe: false,
        };
        let health = Health::default();
        assert_eq!(health.after(failed, NOW, policy), (health, None));
    }

    fn event() -> impl Strategy<Value = EndpointEvent> {
        prop_oneof![
            (1..4_u32, any::<bool>())
                .prop_map(|(attempts, probe)| EndpointEvent::Failed { attempts, probe }),
            Just(EndpointEvent::Acknowledged),
            Just(EndpointEvent::Probe {
                delivery: uuid::Uuid::from_u128(1).into(),
                until: NOW + Duration::from_secs(20),
            }),
            any::<bool>().prop_map(|by_partner| EndpointEvent::Pause { by_partner }),
            any::<bool>().prop_map(|by_partner| EndpointEvent::Resume { by_partner }),
            any::<bool>().prop_map(|by_partner| EndpointEvent::NewUrl { by_partner }),
        ]
    }

    fn run(events: &[EndpointEvent]) -> (Health, Vec<HealthNotice>) {
        let mut told = Vec::new();
        let mut health = Health::default();
        for (second, event) in events.iter().enumerate() {
            let now = NOW + Duration::from_secs(second as u64);
            let (next, notice) = health.after(*event, now, POLICY);
            told.extend(notice);
            health = next;
        }
        (health, told)
    }

    #[test]
    fn each_failed_probe_doubles_the_block_up_to_the_longest() {
        let mut health = Health::default();
        let failed = |probe| EndpointEvent::Failed { attempts: 4, probe };
        let mut lasts = Vec::new();
        for _ in 0..9 {
            (health, _) = health.after(failed(health.probe.is_some()), NOW, POLICY);
            let EndpointGate::BlockedUntil(until) = health.gate else {
                panic!("{health:?}");
            };
            lasts.push((until - NOW).whole_seconds());
            let probe = EndpointEvent::Probe {
                delivery: DeliveryId::new(),
                until: until + Duration::from_secs(20),
            };
            (health, _) = health.after(probe, until, POLICY);
            assert!(health.probe.is_some());
        }
        assert_eq!(lasts, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    proptest! {
        #[test]
        fn an_acknowledgement_heals_whatever_is_not_paused(events in prop::collection::vec(event(), 0..20)) {
            let (health, _) = run(&events);
            let (after, notice) = health.after(EndpointEvent::Acknowledged, NOW, POLICY);
            if matches!(health.gate, EndpointGate::Paused { .. }) {
                prop_assert_eq!((after, notice), (health, None));
            } else {
                prop_assert_eq!((after.gate, after.failures, after.told), (EndpointGate::Open, 0, None));
                prop_assert_eq!(notice.is_some(), health.told.is_some());
            }
        }

        #[test]
        fn a_pause_of_an_operator_ends_by_an_operator_only(
            events in prop::collection::vec(event(), 0..20), later in prop::collection::vec(event(), 0..20),
        ) {
            let (health, _) = run(&events);
            let (mut health, _) = health.after(EndpointEvent::Pause { by_partner: false }, NOW, POLICY);
            for event in later {
                if event == (EndpointEvent::Resume { by_partner: false }) {
                    break;
                }
                (health, _) = health.after(event, NOW, POLICY);
                prop_assert_eq!(health.gate, EndpointGate::Paused { by_partner: false });
            }
        }

        #[test]
        fn a_partner_is_told_changes_only(events in prop::collection::vec(event(), 0..40)) {
            let (_, told) = run(&events);
            for pair in told.windows(2) {
                prop_assert_ne!(pair[0], pair[1]);
            }
            prop_assert_ne!(told.first(), Some(&HealthNotice::Recovered));
        }
    }
}
