//! The count of attempts in flight at one destination, as sessions share it beside the rows: a number that is never
//! too small. Too large it may be for a while; who meets a limit counts the rows.
//!
//! | what happens | the count |
//! |---|---|
//! | a claim begins | takes as many places as it may need, or is refused |
//! | it knows what it claims | gives the rest back |
//! | its transaction rolls back | gives all of them back |
//! | an attempt ends, and that is committed | one less, if nobody counted since the end was decided |
//! | a session counts the rows, while none claims | a new generation before it looks and one after it |
//!
//! A session that ends an attempt remembers the generation of that moment. Its commit may fall before or after what a
//! counting session sees, so it takes itself off only in the generation that it knows: a count that already lacks it is of
//! a later one. The price is a count that is too large until the next one.

/// How many attempts, and how many of them are repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flights {
    /// All attempts.
    pub all: u32,
    /// Those that are not their command's first.
    pub repeats: u32,
}

/// The largest number that is told from larger ones.
pub const MOST: u32 = u16::MAX as u32;

/// A count and its generation, in eight bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count(pub u64);

impl Count {
    fn new(generation: u32, flights: Flights) -> Self {
        let part = |number: u32| u64::from(number.min(MOST));
        Self(u64::from(generation) << 32 | part(flights.all) << 16 | part(flights.repeats))
    }

    /// The generation.
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The numbers.
    pub fn flights(self) -> Flights {
        Flights { all: (self.0 >> 16) as u32 & MOST, repeats: self.0 as u32 & MOST }
    }

    /// Takes places, unless that would be more than there are.
    pub fn take(self, wanted: Flights, limit: Flights) -> Option<Self> {
        let now = self.flights();
        let then = Flights { all: now.all + wanted.all.min(MOST), repeats: now.repeats + wanted.repeats.min(MOST) };
        let fits = then.all <= limit.all.min(MOST - 1) && then.repeats <= limit.repeats.min(MOST - 1);
        fits.then(|| Self::new(self.generation(), then))
    }

    /// Gives places back that were taken and not used.
    pub fn give_back(self, flights: Flights) -> Self {
        let now = self.flights();
        // What cannot be told from more stays as it is.
        let less = |number: u32, by: u32| if number == MOST { MOST } else { number.saturating_sub(by) };
        let then = Flights { all: less(now.all, flights.all), repeats: less(now.repeats, flights.repeats) };
        Self::new(self.generation(), then)
    }

    /// An attempt ended, and its end is committed; `generation` is that of the moment when the end was decided.
    pub fn land(self, generation: u32, flights: Flights) -> Self {
        if self.generation() == generation { self.give_back(flights) } else { self }
    }

    /// Somebody is about to count the rows.
    pub fn begin_counting(self) -> Self {
        Self::new(self.generation().wrapping_add(1), self.flights())
    }

    /// What somebody counted.
    pub fn counted(self, flights: Flights) -> Self {
        Self::new(self.generation().wrapping_add(1), flights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: Flights = Flights { all: MOST, repeats: MOST };

    fn flights(all: u32, repeats: u32) -> Flights {
        Flights { all, repeats }
    }

    #[test]
    fn places_are_taken_up_to_both_limits_and_given_back() {
        let limit = flights(3, 1);
        let one = Count::default().take(flights(1, 1), limit).unwrap();
        assert_eq!(one.flights(), flights(1, 1));
        assert_eq!(one.take(flights(1, 1), limit), None, "no second repeat");
        let three = one.take(flights(2, 0), limit).unwrap();
        assert_eq!(three.take(flights(1, 0), limit), None);
        assert_eq!(three.give_back(flights(2, 1)).flights(), flights(1, 0));
        assert_eq!(three.give_back(flights(9, 9)).flights(), flights(0, 0));
    }

    #[test]
    fn a_number_that_does_not_fit_is_full_for_ever() {
        let full = Count::default().counted(flights(1_000_000, 2));
        assert_eq!(full.flights(), flights(MOST, 2));
        assert_eq!(full.give_back(flights(10, 0)).flights(), flights(MOST, 2));
        assert_eq!(full.take(flights(1, 0), NO_LIMIT), None);
    }

    /// One session ends an attempt while another counts: every order of their steps, and the count is never below the
    /// rows. The counting session is the only one that claims, so rows only become fewer.
    #[test]
    fn a_count_is_never_too_small_in_whatever_order_an_end_and_a_recount_meet() {
        #[derive(Clone, Copy, PartialEq)]
        enum Step {
            Decide,
            Commit,
            TakeOff,
            Begin,
            Look,
            Store,
        }
        use Step::{Begin, Commit, Decide, Look, Store, TakeOff};
        fn orders(a: &[Step], b: &[Step], so_far: &mut Vec<Step>, each: &mut impl FnMut(&[Step])) {
            if a.is_empty() && b.is_empty() {
                return each(so_far);
            }
            for (first, (rest_a, rest_b)) in [(a.first(), (a.get(1..), Some(b))), (b.first(), (Some(a), b.get(1..)))] {
                if let (Some(step), Some(rest_a), Some(rest_b)) = (first, rest_a, rest_b) {
                    so_far.push(*step);
                    orders(rest_a, rest_b, so_far, each);
                    so_far.pop();
                }
            }
        }
        let mut seen = 0;
        orders(&[Decide, Commit, TakeOff], &[Begin, Look, Store], &mut Vec::new(), &mut |steps| {
            let (mut count, mut rows) = (Count::default().counted(flights(2, 2)), 2);
            let (mut generation, mut looked) = (0, 0);
            for step in steps {
                match step {
                    Decide => generation = count.generation(),
                    Commit => rows -= 1,
                    TakeOff => count = count.land(generation, flights(1, 1)),
                    Begin => count = count.begin_counting(),
                    Look => looked = rows,
                    Store => count = count.counted(flights(looked, looked)),
                }
                assert!(count.flights().all >= rows && count.flights().repeats >= rows);
            }
            assert!(count.flights().all <= 2);
            seen += 1;
        });
        assert_eq!(seen, 20);
    }
}
