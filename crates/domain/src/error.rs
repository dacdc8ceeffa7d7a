//! The errors that a caller of the ledger can meet: each has its own SQLSTATE, a message that says what and why, and
//! where it helps a DETAIL and a HINT that says what to do. No message ever holds a payload value or a secret.

use std::fmt;

/// What went wrong, as the SQLSTATE that the caller sees (class `CL`, and the two standard codes that fit).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// `CL001`: the key is known with other parameters.
    IdempotencyConflict,
    /// `CL002`: the key (or tenant name) is not a valid one.
    InvalidKey,
    /// `CL003`: no such command type or destination.
    UnknownName,
    /// `CL004`: the parameters break the schema, or are not an object.
    InvalidParams,
    /// `CL005`: policy denies the command.
    Denied,
    /// `CL006`: the state does not allow this.
    IllegalTransition,
    /// `CL007`: the approval is for another version of the intent.
    ApprovalMismatch,
    /// `CL008`: this approver may not approve.
    ApproverNotAllowed,
    /// `CL009`: no attempt of this command has this lease token.
    UnknownLease,
    /// `CL010`: a look-alike was blocked.
    LookalikeBlocked,
    /// `CL011`: no such command.
    NoSuchCommand,
    /// `CL012`: a definition (destination, command type, grant) is not valid.
    InvalidDefinition,
    /// `CL013`: a claim inside a transaction block.
    ClaimInTransaction,
    /// `CL014`: the JSON is outside the bounds of the canonical form.
    JsonOutOfBounds,
    /// `CL015`: the relay of this ledger is fenced.
    RelayFenced,
    /// `42501`: the caller lacks the right.
    InsufficientPrivilege,
    /// `22004`: NULL for a required argument.
    NullArgument,
    /// `22023`: an argument has a value that is not allowed.
    InvalidArgument,
    /// `0A000`: the server or database cannot do this.
    NotSupported,
    /// `57014`: a statement was cancelled: by a person, a time limit or a stop request.
    Canceled,
    /// `25006`: nothing can be written here: a standby, or a read-only transaction.
    ReadOnly,
    /// `XX000`: a defect of the ledger itself.
    Internal,
}

impl Code {
    /// The five characters of the SQLSTATE.
    pub const fn sqlstate(self) -> &'static str {
        match self {
            Code::IdempotencyConflict => "CL001",
            Code::InvalidKey => "CL002",
            Code::UnknownName => "CL003",
            Code::InvalidParams => "CL004",
            Code::Denied => "CL005",
            Code::IllegalTransition => "CL006",
            Code::ApprovalMismatch => "CL007",
            Code::ApproverNotAllowed => "CL008",
            Code::UnknownLease => "CL009",
            Code::LookalikeBlocked => "CL010",
            Code::NoSuchCommand => "CL011",
            Code::InvalidDefinition => "CL012",
            Code::ClaimInTransaction => "CL013",
            Code::JsonOutOfBounds => "CL014",
            Code::RelayFenced => "CL015",
            Code::InsufficientPrivilege => "42501",
            Code::NullArgument => "22004",
            Code::InvalidArgument => "22023",
            Code::NotSupported => "0A000",
            Code::Canceled => "57014",
            Code::ReadOnly => "25006",
            Code::Internal => "XX000",
        }
    }
}

impl Code {
    /// What to do in general, for an error that does not say it more precisely.
    pub const fn general_hint(self) -> &'static str {
        match self {
            Code::IdempotencyConflict => "A repeat must carry the same parameters; a new intent needs a new key.",
            Code::InvalidKey => {
                "Keys have 1 to 255 bytes of UTF-8, tenant names 1 to 63 without \"/\"; no control characters, no blank at either end."
            }
            Code::UnknownName => "Define it first: define_destination(), define_command_type().",
            Code::InvalidParams => "Correct the parameters; validate() tries them without registering anything.",
            Code::Denied => "Change the parameters, or ask an administrator about the policy of this type.",
            Code::IllegalTransition => "Look at status() and explain() for where the command stands.",
            Code::ApprovalMismatch => "Look at the command again and use the intent_hash that status() shows now.",
            Code::ApproverNotAllowed => {
                "Another person must approve, through a role that did not propose this command."
            }
            Code::UnknownLease => "Use the lease_token that the claim of this very command handed out.",
            Code::LookalikeBlocked => "Use the other command's key, or name it: distinct_from => that key.",
            Code::NoSuchCommand => "Check the key and the tenant.",
            Code::InvalidDefinition => "Correct the document at the path that DETAIL names.",
            Code::ClaimInTransaction => "Run the claim as a statement of its own, with autocommit on.",
            Code::JsonOutOfBounds => "Send less, or send a reference to the data instead of the data.",
            Code::RelayFenced => "Make sure that no other copy sends, then call adopt_relay().",
            Code::InsufficientPrivilege => "An administrator can allow it with grant_access().",
            Code::NullArgument | Code::InvalidArgument => "Correct the argument.",
            Code::NotSupported => "See the documentation for what is needed.",
            Code::Canceled => "Try again; nothing was changed.",
            Code::ReadOnly => "Call it on the primary, in a transaction that may write.",
            Code::Internal => "Please report it, with the message and the server's log.",
        }
    }
}

/// An error of the ledger, before it becomes a PostgreSQL error report at the outermost function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerError {
    /// The SQLSTATE.
    pub code: Code,
    /// What happened and why, one sentence without a payload value.
    pub message: String,
    /// The particulars (a JSON pointer, a state, a position).
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl LedgerError {
    /// An error with a message alone.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail: None, hint: None }
    }

    /// The same with a DETAIL.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The same with one more sentence at the end of its DETAIL.
    #[must_use]
    pub fn also(mut self, sentence: &str) -> Self {
        self.detail = Some(self.detail.map_or_else(|| sentence.to_owned(), |detail| format!("{detail} {sentence}")));
        self
    }

    /// The same with a HINT.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.sqlstate(), self.message)?;
        if let Some(detail) = &self.detail {
            write!(f, " ({detail})")?;
        }
        Ok(())
    }
}

impl std::error::Error for LedgerError {}
