//! What a transition starts from, and what it says.

use super::reason::CaseReason;
use super::words::{ApprovalState, ErrorClass, Status};

/// What a decision needs to know of a command, read on its locked row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The state.
    pub status: Status,
    /// Some attempt may have had an effect that is neither confirmed nor excluded. While an attempt is in flight this
    /// is what held before it: `dispatched` itself says that one may be on its way.
    pub maybe_sent: bool,
    /// Attempts started so far, released ones included.
    pub attempt: i32,
    /// What the approvals say about the current intent hash, now.
    pub approval: ApprovalState,
    /// While dispatched: a success of an older attempt with the current request arrived and waits for this attempt.
    pub success_kept: bool,
    /// The open case, if any.
    pub case: Option<CaseReason>,
    /// The parameters were redacted: it can never be sent again.
    pub redacted: bool,
}

impl State {
    /// The state after a transition; approval and redaction are facts of their own and stay.
    #[must_use]
    pub fn after(&self, transition: &Transition) -> Self {
        Self {
            status: transition.to,
            maybe_sent: transition.maybe_sent,
            attempt: transition.attempt,
            success_kept: transition.success_kept,
            case: match transition.case {
                CaseAction::None => self.case,
                CaseAction::Open(reason) => Some(reason),
                CaseAction::Close => None,
            },
            ..*self
        }
    }
}

/// What to do with the reconciliation case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaseAction {
    /// Leave it as it is, open or not.
    None,
    /// Open one for this reason; if one is open, this is its reason from now on (it is never the lesser one).
    Open(CaseReason),
    /// Close it.
    Close,
}

/// What an event does to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transition {
    /// The state afterwards.
    pub to: Status,
    /// The flag afterwards.
    pub maybe_sent: bool,
    /// Attempts started, afterwards.
    pub attempt: i32,
    /// Whether a success is kept for the time when the attempt in flight ends.
    pub success_kept: bool,
    /// What happens to the case.
    pub case: CaseAction,
    /// The class of error that the command shows afterwards. Without meaning when `transition` is false.
    pub error: Option<ErrorClass>,
    /// The kind of the journal entry.
    pub kind: &'static str,
    /// The command's row is written (state, flag, attempt or content). False: journal and case only.
    pub transition: bool,
}

/// The transition that creates a command.
pub fn registered(approval_needed: bool) -> Transition {
    Transition {
        to: if approval_needed { Status::Planned } else { Status::Approved },
        maybe_sent: false,
        attempt: 0,
        success_kept: false,
        case: CaseAction::None,
        error: None,
        kind: "register",
        transition: true,
    }
}
