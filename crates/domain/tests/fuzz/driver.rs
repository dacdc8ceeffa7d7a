//! The driver: takes an input of the pool, changes it, tries it. An input whose answer has a trait that was not seen
//! before joins the pool, in place of the coverage that a stable toolchain does not measure.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// What a property says of an input: the trait of its answer, or what is violated.
pub type Verdict = Result<String, String>;

/// Inputs are not longer.
const MAX_BYTES: usize = 4096;
/// Changes of one input at once.
const MAX_CHANGES: u64 = 4;
/// Single bytes that mean something to some reader.
const SIGNS: &[u8] = b"0123456789-+.eE\"\\{}[]:,\x00\x7f \n/~%'";
/// Inputs in the pool, the corpus included.
const MAX_POOL: usize = 4096;

/// One target.
pub struct Target {
    /// Its name, and its directory in the corpus.
    pub name: &'static str,
    /// Words that inputs are made of.
    pub words: &'static [&'static str],
    /// Inputs of an ordinary run.
    pub inputs: u64,
}

struct Dice(u64);

impl Dice {
    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.draw() % u64::try_from(n.max(1)).unwrap_or(1)).unwrap_or(0)
    }
}

impl Target {
    /// Fails with the shortest input found when the property does not hold.
    pub fn holds(&self, property: impl Fn(&[u8]) -> Verdict) {
        let Some((input, why)) = self.find(&property) else { return };
        let file = std::env::temp_dir().join(format!("fuzz_{}.input", self.name));
        let kept = fs::write(&file, &input).map_or_else(|e| e.to_string(), |()| file.display().to_string());
        panic!("{}: {why}\ninput: {:?}\nkept: {kept}", self.name, String::from_utf8_lossy(&input));
    }

    /// Fails when the property does not find with a wrong function what is wrong with it: `word` stands in what it says.
    pub fn is_found_out(&self, word: &str, property: impl Fn(&[u8]) -> Verdict) {
        let found = self.find(&property).map(|(_, why)| why);
        assert!(
            found.as_ref().is_some_and(|why| why.contains(word)),
            "{}: {word:?} expected, found {found:?}",
            self.name
        );
    }

    /// The shortest input, near the first one found, that violates the property.
    fn find(&self, property: &impl Fn(&[u8]) -> Verdict) -> Option<(Vec<u8>, String)> {
        let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        let (seconds, seed) = (number("FUZZ_SECONDS"), number("FUZZ_SEED").unwrap_or(1));
        let mut dice = Dice(seed);
        let mut pool = self.corpus();
        let mut traits = BTreeSet::new();
        for input in &pool {
            match verdict(property, input) {
                Ok(answer) => drop(traits.insert(answer)),
                Err(why) => return Some(shortened(property, input.clone(), why)),
            }
        }
        let begun = Instant::now();
        let mut made = 0;
        let more = |made: u64| match seconds {
            // The clock is looked at now and then.
            Some(seconds) => !made.is_multiple_of(256) || begun.elapsed() < Duration::from_secs(seconds),
            None => made < self.inputs,
        };
        while more(made) {
            made += 1;
            let mut input = pool[dice.below(pool.len())].clone();
            for _ in 0..=dice.draw() % MAX_CHANGES {
                let other = &pool[dice.below(pool.len())];
                self.change(&mut dice, &mut input, other);
            }
            input.truncate(MAX_BYTES);
            match verdict(property, &input) {
                Ok(answer) if pool.len() < MAX_POOL && traits.insert(answer.clone()) => pool.push(input),
                Ok(_) => {}
                Err(why) => return Some(shortened(property, input, why)),
            }
        }
        println!("{}: {made} inputs, {} traits, seed {seed}", self.name, traits.len());
        None
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(self.name);
        let entries = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
        let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        // The same order everywhere.
        files.sort();
        let inputs: Vec<Vec<u8>> = files.iter().filter_map(|file| fs::read(file).ok()).collect();
        assert!(!inputs.is_empty(), "{}: no corpus", directory.display());
        inputs
    }

    fn change(&self, dice: &mut Dice, input: &mut Vec<u8>, other: &[u8]) {
        let at = dice.below(input.len() + 1);
        let to = (at + 1 + dice.below(8)).min(input.len());
        match dice.below(9) {
            0 if !input.is_empty() => {
                let bit = 1 << dice.below(8);
                input[at.min(to.saturating_sub(1))] ^= bit;
            }
            1 => drop(input.drain(at.min(to)..to)),
            2 => {
                let part = input[at.min(to)..to].to_vec();
                input.splice(at..at, part);
            }
            3 => {
                let from = dice.below(other.len() + 1);
                let part = &other[from..(from + dice.below(64)).min(other.len())];
                input.splice(at..at, part.iter().copied());
            }
            4 => {
                // The beginning of one and the end of another.
                input.truncate(at);
                input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
            }
            5 => input.insert(at, SIGNS[dice.below(SIGNS.len())]),
            6 => {
                let strange = ["\u{e000}", "\u{10000}", "\u{2028}", "\u{fffd}", "é", "\u{a0}", "\u{202e}"];
                input.splice(at..at, strange[dice.below(strange.len())].bytes());
            }
            _ => {
                let word = self.words[dice.below(self.words.len())];
                input.splice(at..at, word.bytes());
            }
        }
    }
}

fn verdict(property: &impl Fn(&[u8]) -> Verdict, input: &[u8]) -> Verdict {
    catch_unwind(AssertUnwindSafe(|| property(input))).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("it panicked: {}", said.unwrap_or_default()))
    })
}

/// Takes parts away as long as it stays wrong.
fn shortened(property: &impl Fn(&[u8]) -> Verdict, mut input: Vec<u8>, mut why: String) -> (Vec<u8>, String) {
    let mut part = input.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at + part <= input.len() {
            let mut shorter = input.clone();
            shorter.drain(at..at + part);
            match verdict(property, &shorter) {
                Err(still) => (input, why) = (shorter, still),
                Ok(_) => at += part,
            }
        }
        part /= 2;
    }
    (input, why)
}

/// The words of a fault without what differs from input to input.
pub fn skeleton(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).take(80).collect()
}
