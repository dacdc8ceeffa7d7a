//! The strict reader: RFC 8259 to the letter, and nothing that a jsonb would lose or change on the way in.

use std::borrow::Cow;

use super::fault::Fault;
use super::{Json, MAX_DEPTH, MAX_TEXT_BYTES};
use crate::canonical::number::Decimal;
use crate::error::LedgerError;

/// Up to this many members, comparing every pair of names is quicker than sorting them.
const FEW_MEMBERS: usize = 16;

impl<'a> Json<'a> {
    /// Reads one JSON text. Numbers keep their text, members their order; strings without escapes are borrowed.
    ///
    /// Stricter than a cast to jsonb, which drops the first of two equal members silently and keeps numbers that
    /// print 131,072 digits. What is accepted here is also accepted by [`crate::canonical::canonical`], unless its
    /// number text grows it beyond 1 MiB there.
    ///
    /// # Errors
    /// - `CL004` when the text is not exactly one JSON value, when a member name stands twice in an object (compared
    ///   after unescaping), when an escape is half of a surrogate pair, and for `\u0000`, which PostgreSQL cannot hold.
    /// - `CL014` when the text is over 1 MiB, nests deeper than [`MAX_DEPTH`], or holds a number beyond 400
    ///   significant digits or an exponent beyond +-400.
    ///
    /// The DETAIL tells the byte offset (from 0) and the JSON pointer; no value is shown.
    pub fn parse(text: &'a str) -> Result<Json<'a>, LedgerError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(Fault::out_of_bounds("the JSON text is longer than 1 MiB").into());
        }
        let mut reader = Reader { text, bytes: text.as_bytes(), at: 0, depth: 0 };
        Ok(reader.document()?)
    }
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn document(&mut self) -> Result<Json<'a>, Fault> {
        self.skip_space();
        let value = self.value()?;
        self.skip_space();
        match self.peek() {
            None => Ok(value),
            Some(_) => Err(self.invalid("the text goes on after the JSON value")),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    #[cold]
    fn invalid(&self, reason: &'static str) -> Fault {
        Fault::invalid(reason).at_byte(self.at)
    }

    fn value(&mut self) -> Result<Json<'a>, Fault> {
        match self.peek() {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => Ok(Json::String(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            Some(_) => Err(self.invalid("a JSON value was expected here")),
            None => Err(self.invalid("the JSON text ends too early")),
        }
    }

    fn word(&mut self, word: &str, value: Json<'a>) -> Result<Json<'a>, Fault> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.invalid("a JSON value was expected here"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Json<'a>, Fault>) -> Result<Json<'a>, Fault> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::out_of_bounds("the JSON nests deeper than 128 levels").at_byte(self.at));
        }
        self.depth += 1;
        self.at += 1;
        self.skip_space();
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn array(&mut self) -> Result<Json<'a>, Fault> {
        let mut elements = Vec::new();
        if self.eat(b']') {
            return Ok(Json::Array(elements));
        }
        loop {
            elements.push(self.value().map_err(|fault| fault.in_element(elements.len()))?);
            self.skip_space();
            if self.eat(b']') {
                return Ok(Json::Array(elements));
            }
            self.comma("a comma or ] was expected here")?;
        }
    }

    fn object(&mut self) -> Result<Json<'a>, Fault> {
        let start = self.at;
        let mut members = Vec::new();
        if self.eat(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.invalid("a member name in double quotes was expected here"));
            }
            let name = self.string()?;
            self.skip_space();
            if !self.eat(b':') {
                return Err(self.invalid("a colon was expected here").in_member(&name));
            }
            self.skip_space();
            let value = self.value().map_err(|fault| fault.in_member(&name))?;
            members.push((name, value));
            self.skip_space();
            if self.eat(b'}') {
                break;
            }
            self.comma("a comma or } was expected here")?;
        }
        match repeated_name(&members) {
            None => Ok(Json::Object(members)),
            Some(name) => {
                Err(Fault::invalid("a member name stands twice in one object").at_byte(start).in_member(name))
            }
        }
    }

    fn comma(&mut self, reason: &'static str) -> Result<(), Fault> {
        if !self.eat(b',') {
            return Err(self.invalid(if self.peek().is_none() { "the JSON text ends too early" } else { reason }));
        }
        self.skip_space();
        Ok(())
    }

    fn number(&mut self) -> Result<Json<'a>, Fault> {
        let start = self.at;
        while let Some(b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E') = self.peek() {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        match Decimal::read(text) {
            Ok(_) => Ok(Json::Number(Cow::Borrowed(text))),
            Err(fault) => Err(fault.at_byte(start)),
        }
    }

    /// Passes over what stands for itself in a string.
    fn plain_run(&mut self) -> &'a str {
        let start = self.at;
        while let Some(0x20 | 0x21 | 0x23..=0x5b | 0x5d..) = self.peek() {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Fault> {
        self.at += 1;
        let run = self.plain_run();
        if self.eat(b'"') {
            return Ok(Cow::Borrowed(run));
        }
        let mut text = String::from(run);
        loop {
            if self.eat(b'"') {
                return Ok(Cow::Owned(text));
            }
            text.push(self.escape()?);
            text.push_str(self.plain_run());
        }
    }

    fn escape(&mut self) -> Result<char, Fault> {
        match self.peek() {
            Some(b'\\') => self.at += 1,
            Some(_) => return Err(self.invalid("a control character stands in a string without being escaped")),
            None => return Err(self.invalid("the JSON text ends inside a string")),
        }
        let plain = match self.peek() {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            Some(_) => return Err(self.invalid("JSON has no such escape")),
            None => return Err(self.invalid("the JSON text ends inside a string")),
        };
        self.at += 1;
        Ok(plain)
    }

    fn unicode_escape(&mut self) -> Result<char, Fault> {
        let start = self.at - 1;
        let alone = |fault: &'static str| Err(Fault::invalid(fault).at_byte(start));
        let point = match self.code_unit()? {
            0 => return alone("\\u0000 cannot be stored by PostgreSQL"),
            high @ 0xd800..=0xdbff => {
                if !self.bytes[self.at..].starts_with(b"\\u") {
                    return alone("an escape is half of a surrogate pair");
                }
                self.at += 1;
                match self.code_unit()? {
                    low @ 0xdc00..=0xdfff => 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00),
                    _ => return alone("an escape is half of a surrogate pair"),
                }
            }
            other => other,
        };
        match char::from_u32(point) {
            Some(c) => Ok(c),
            None => alone("an escape is half of a surrogate pair"),
        }
    }

    /// Reads `u` and four hexadecimal digits.
    fn code_unit(&mut self) -> Result<u32, Fault> {
        self.at += 1;
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit << 4 | digit.ok_or_else(|| self.invalid("\\u needs four hexadecimal digits"))?;
            self.at += 1;
        }
        Ok(unit)
    }
}

/// A name that two members share.
fn repeated_name<'m>(members: &'m [(Cow<'_, str>, Json<'_>)]) -> Option<&'m str> {
    if members.len() <= FEW_MEMBERS {
        return members.iter().enumerate().find_map(|(index, (name, _))| {
            members[..index].iter().any(|(earlier, _)| earlier == name).then_some(name.as_ref())
        });
    }
    let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_ref()).collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
