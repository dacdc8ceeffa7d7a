//! The words of the ledger that stand in tables and answers: states, classes of error, what approval says.

/// Declares an enum whose variants have one fixed text each: `ALL`, `as_str`, `parse`, `Display`.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$variant_meta])* $variant,)+ }

        impl $name {
            /// Every variant, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word as tables, answers and messages spell it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The variant of a word; `None` for any other text (exact spelling, no folding).
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use words;

words! {
    /// The state of a command.
    Status {
        /// Registered; waits for an approval.
        Planned = "planned",
        /// May be sent: in the outbox, due now or later.
        Approved = "approved",
        /// An attempt holds a lease: it may be on its way.
        Dispatched = "dispatched",
        /// The effect is proven. Final.
        Confirmed = "confirmed",
        /// Provably without effect, or given up by a person.
        Failed = "failed",
        /// What happened is not known, or must not be decided by a machine.
        NeedsReconciliation = "needs_reconciliation",
        /// Withdrawn before anything can have been sent. Final.
        Cancelled = "cancelled",
    }
}

impl Status {
    /// No transition leaves this state, whatever comes later (I10).
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Confirmed | Self::Cancelled)
    }

    /// Nothing more happens on its own and nobody is asked: confirmed, failed, cancelled.
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Confirmed | Self::Failed | Self::Cancelled)
    }

    /// A person is asked: for an approval, or for a finding.
    pub const fn needs_person(self) -> bool {
        matches!(self, Self::Planned | Self::NeedsReconciliation)
    }
}

words! {
    /// What kind of error a command last met.
    ErrorClass {
        /// No byte of the request can have reached the destination.
        NotSent = "not_sent",
        /// The destination said: not now, nothing done.
        Transient = "transient",
        /// The destination refused this request for good.
        Permanent = "permanent",
        /// The destination refused the credentials.
        Permission = "permission",
        /// What happened is not known, or the command was given up while it was not known.
        Uncertain = "uncertain",
        /// The ledger or an approver refused before any send.
        Rejected = "rejected",
        /// The deadline passed.
        Expired = "expired",
        /// The last permitted attempt was used.
        BudgetExhausted = "budget_exhausted",
    }
}

words! {
    /// What the approvals of a command say about exactly its current intent hash, now.
    ApprovalState {
        /// The command type (or its predicate) asks for none.
        NotNeeded = "not_needed",
        /// The quorum stands.
        Valid = "valid",
        /// Too few, lapsed, revoked, or for another intent hash.
        Missing = "missing",
    }
}

impl ApprovalState {
    /// A send may rest on this.
    pub const fn permits_send(self) -> bool {
        !matches!(self, Self::Missing)
    }
}
