//! Random choices that a seed repeats: each actor has a generator of its own, and what a destination does with a
//! request follows from the seed, its key and its number, whatever the order in which requests arrive.

/// A generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The generator of one actor.
    pub fn of(seed: u64, actor: &str, number: u64) -> Dice {
        // FNV-1a over the name: the same on every machine and in every build.
        let name =
            actor.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
        let mut dice = Dice(seed ^ name.rotate_left(17) ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        dice.draw();
        dice
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to n - 1; 0 for an n of 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw().checked_rem(n).unwrap_or(0)
    }

    /// From a to b, both included.
    pub fn between(&mut self, a: u64, b: u64) -> u64 {
        a + self.below(b.saturating_sub(a) + 1)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of them; panics when there is none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[usize::try_from(self.below(choices.len() as u64)).unwrap_or(0)]
    }

    /// One of them, by weight.
    pub fn weighted<T: Copy>(&mut self, choices: &[(T, u64)]) -> T {
        let total: u64 = choices.iter().map(|(_, weight)| weight).sum();
        let mut at = self.below(total);
        for (choice, weight) in choices {
            if at < *weight {
                return *choice;
            }
            at -= weight;
        }
        choices[0].0
    }
}

#[cfg(test)]
mod tests {
    use super::Dice;

    #[test]
    fn a_seed_repeats_its_choices_and_actors_differ() {
        let draw = |seed, actor, n| {
            let mut dice = Dice::of(seed, actor, n);
            (0..8).map(|_| dice.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, "caller", 1), draw(7, "caller", 1));
        assert_ne!(draw(7, "caller", 1), draw(7, "caller", 2));
        assert_ne!(draw(7, "caller", 1), draw(8, "caller", 1));
        assert_ne!(draw(7, "caller", 1), draw(7, "worker", 1));
    }
}
