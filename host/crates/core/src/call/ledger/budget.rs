//! The comparison of amounts with budgets. This module does no I/O.

use monstrum_store::{BudgetLimits, Payer, Spent};
use monstrum_types::{AppUser, BotId, CallOutcome, Code};

use super::reservation::{OUTPUT_TOKENS_MIN, Price, TOKENS_OF_PRICE};

/// The kind of a subject that pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayerKind {
    Workspace,
    Bot,
    User,
}

/// The subjects that pay for a call, in the order in which they are named in messages.
pub(super) const PAYERS: [PayerKind; 3] = [PayerKind::Workspace, PayerKind::Bot, PayerKind::User];

/// The cost of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    pub(super) tokens: i64,
    pub(super) credits_millionths: i64,
}

/// What a budget limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Tokens,
    Credits,
}

/// A budget that has too little room for an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exceeded {
    payer: PayerKind,
    unit: Unit,
    amount: i64,
    limit: i64,
    spent: i64,
    reserved: i64,
}

/// The largest part of a reservation, in tokens and in millionths of a credit: 2^50. The sum of thousands of such
/// reservations fits into the integers of the database.
pub(super) const RESERVED_MAX: i64 = 1 << 50;

impl PayerKind {
    /// Returns the subject of this kind, or `None` if a call has no user.
    pub(super) fn of(self, bot: BotId, user: Option<&AppUser>) -> Option<Payer> {
        match self {
            PayerKind::Workspace => Some(Payer::Workspace),
            PayerKind::Bot => Some(Payer::Bot(bot)),
            PayerKind::User => user.cloned().map(Payer::User),
        }
    }

    fn name(self) -> &'static str {
        match self {
            PayerKind::Workspace => "workspace",
            PayerKind::Bot => "bot",
            PayerKind::User => "user",
        }
    }
}

impl Exceeded {
    /// Returns the limit that the amount exceeds. An amount of zero exceeds no limit.
    pub(super) fn find(payer: PayerKind, limits: BudgetLimits, spent: Spent, amount: Amount) -> Option<Exceeded> {
        Use::of(limits, spent).into_iter().find_map(|Use { unit, limit, spent, reserved }| {
            let amount = match unit {
                Unit::Tokens => amount.tokens,
                Unit::Credits => amount.credits_millionths,
            };
            let limit = limit.filter(|limit| amount > 0 && i128::from(amount) > left(*limit, spent, reserved))?;
            Some(Exceeded { payer, unit, amount, limit, spent, reserved })
        })
    }

    /// Returns the outcome of the refused call. `what` is the beginning of the message.
    pub(super) fn outcome(&self, what: &str, month: &str) -> CallOutcome {
        let Exceeded { payer, unit, amount, limit, spent, reserved } = *self;
        let shown = |number: i64| match unit {
            Unit::Tokens => number.to_string(),
            Unit::Credits => credits(number),
        };
        let unit = match unit {
            Unit::Tokens => "tokens",
            Unit::Credits => "credits",
        };
        let reserved = match reserved {
            0 => String::new(),
            reserved => format!(", and {} are reserved for running rounds", shown(reserved)),
        };
        let message = format!(
            "{what} {} {unit} and exceeds the {}'s budget for {month} ({} of {} {unit} are spent{reserved})",
            shown(amount),
            payer.name(),
            shown(spent),
            shown(limit),
        );
        CallOutcome::error(Code::Budget, message).by_rule("budget")
    }
}

/// The limit of a subject in one unit, and what is spent and reserved of it.
struct Use {
    unit: Unit,
    limit: Option<i64>,
    spent: i64,
    reserved: i64,
}

impl Use {
    fn of(limits: BudgetLimits, spent: Spent) -> [Use; 2] {
        [
            Use { unit: Unit::Tokens, limit: limits.tokens, spent: spent.tokens, reserved: spent.tokens_reserved },
            Use {
                unit: Unit::Credits,
                limit: limits.credits_millionths,
                spent: spent.credits_millionths,
                reserved: spent.credits_reserved_millionths,
            },
        ]
    }
}

/// Returns what a limit leaves, which is negative if more than the limit is spent.
fn left(limit: i64, spent: i64, reserved: i64) -> i128 {
    i128::from(limit) - i128::from(spent) - i128::from(reserved)
}

/// Formats millionths of a credit as credits.
fn credits(millionths: i64) -> String {
    let text = format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The largest cost of a round that is about to be reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundCost {
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) price: Price,
}

impl RoundCost {
    /// Returns the number of output tokens for which all subjects have room: the requested number, or fewer.
    pub(super) fn fitting(&self, limits: [BudgetLimits; 3], spent: [Spent; 3]) -> Result<u64, Exceeded> {
        let fewest = self.output_tokens.min(OUTPUT_TOKENS_MIN);
        let mut output = i128::from(self.output_tokens).min(i128::from(RESERVED_MAX) - i128::from(self.input_tokens));
        output = output.max(i128::from(fewest));
        for ((payer, limits), spent) in PAYERS.into_iter().zip(limits).zip(spent) {
            for Use { unit, limit, spent, reserved } in Use::of(limits, spent) {
                let Some(limit) = limit else { continue };
                let room = self.room(unit, left(limit, spent, reserved));
                if room < i128::from(fewest) {
                    let amount = match unit {
                        Unit::Tokens => saturated(u128::from(self.input_tokens) + u128::from(fewest)),
                        Unit::Credits => self.credits(fewest),
                    };
                    return Err(Exceeded { payer, unit, amount, limit, spent, reserved });
                }
                output = output.min(room);
            }
        }
        Ok(u64::try_from(output).unwrap_or_default())
    }

    /// Returns the number of output tokens for which there is room if `left` is left. The number is negative if there is
    /// no room for the input.
    fn room(&self, unit: Unit, left: i128) -> i128 {
        if unit == Unit::Tokens {
            return left - i128::from(self.input_tokens);
        }
        // Prices are for many tokens, and the cost is rounded up, so the cost of all tokens together may be this large.
        let left = left.max(0).saturating_mul(i128::try_from(TOKENS_OF_PRICE).unwrap_or(i128::MAX));
        let input = i128::from(self.input_tokens).saturating_mul(i128::from(self.price.dearest_input()));
        match (left.saturating_sub(input), i128::from(self.price.output)) {
            (rest, _) if rest < 0 => -1,
            (_, 0) => i128::MAX,
            (rest, price) => rest / price,
        }
    }

    /// Returns the most that the round costs with this number of output tokens, in millionths of a credit.
    pub(super) fn credits(&self, output_tokens: u64) -> i64 {
        self.price.most(self.input_tokens, output_tokens)
    }
}

fn saturated(number: u128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: BudgetLimits = BudgetLimits { tokens: None, credits_millionths: None };

    fn tokens(limit: i64) -> BudgetLimits {
        BudgetLimits { tokens: Some(limit), credits_millionths: None }
    }

    fn credits_of(limit: i64) -> BudgetLimits {
        BudgetLimits { tokens: None, credits_millionths: Some(limit) }
    }

    fn cost(input_tokens: u64, output_tokens: u64) -> RoundCost {
        // 2 millionths for a token of the input, 10 for a token of the output.
        let price = Price { input: 2_000_000, cached_input: 500_000, output: 10_000_000 };
        RoundCost { input_tokens, output_tokens, price }
    }

    fn fitting(cost: RoundCost, limits: [BudgetLimits; 3]) -> Result<u64, (PayerKind, Unit)> {
        let fitting = cost.fitting(limits, [Spent::default(); 3]);
        fitting.map_err(|exceeded| (exceeded.payer, exceeded.unit))
    }

    #[test]
    fn the_output_is_lowered_to_the_least_room_but_not_below_the_minimum() {
        let (cost, none) = (cost(1000, 4000), [NONE; 3]);
        assert_eq!(fitting(cost, none), Ok(4000));
        for (index, payer) in PAYERS.into_iter().enumerate() {
            let with = |limits: BudgetLimits| {
                let mut all = none;
                all[index] = limits;
                fitting(cost, all)
            };
            assert_eq!(with(tokens(5000)), Ok(4000));
            assert_eq!(with(tokens(4999)), Ok(3999));
            assert_eq!(with(tokens(1256)), Ok(256));
            assert_eq!(with(tokens(1255)), Err((payer, Unit::Tokens)));
            assert_eq!(with(tokens(0)), Err((payer, Unit::Tokens)));
            assert_eq!(with(credits_of(42_000)), Ok(4000));
            assert_eq!(with(credits_of(41_999)), Ok(3999));
            assert_eq!(with(credits_of(2000 + 2560)), Ok(256));
            assert_eq!(with(credits_of(2000 + 2559)), Err((payer, Unit::Credits)));
            assert_eq!(with(credits_of(1999)), Err((payer, Unit::Credits)));
        }
        assert_eq!(fitting(cost, [tokens(3000), tokens(1500), credits_of(12_000)]), Ok(500));
    }

    #[test]
    fn a_round_that_asks_for_less_than_the_minimum_needs_only_that() {
        assert_eq!(fitting(cost(10, 5), [tokens(15), NONE, NONE]), Ok(5));
        assert_eq!(fitting(cost(10, 5), [tokens(14), NONE, NONE]), Err((PayerKind::Workspace, Unit::Tokens)));
    }

    #[test]
    fn what_is_spent_and_reserved_leaves_no_room() {
        let spent = |tokens, tokens_reserved| Spent { tokens, tokens_reserved, ..Spent::default() };
        let fitting = |of_bot| {
            let cost = cost(100, 1000);
            cost.fitting([NONE, tokens(2000), NONE], [Spent::default(), of_bot, Spent::default()])
        };
        assert_eq!(fitting(spent(500, 600)), Ok(800));
        let refused = fitting(spent(1500, 300)).unwrap_err().outcome("this round needs at least", "2026-11");
        assert_eq!(
            refused.message.as_deref(),
            Some(
                "this round needs at least 356 tokens and exceeds the bot's budget for 2026-11 (1500 of 2000 tokens are \
                 spent, and 300 are reserved for running rounds)"
            )
        );
        assert!(fitting(spent(i64::MAX, i64::MAX)).is_err());
    }

    #[test]
    fn free_models_cost_no_credits() {
        let free = RoundCost { input_tokens: 1000, output_tokens: 1000, price: Price::default() };
        assert_eq!(fitting(free, [credits_of(0); 3]), Ok(1000));
    }

    #[test]
    fn absurd_numbers_do_not_overflow() {
        let price = Price { input: u64::MAX, cached_input: u64::MAX, output: u64::MAX };
        let cost = RoundCost { input_tokens: u64::MAX, output_tokens: u64::MAX, price };
        assert_eq!(fitting(cost, [NONE; 3]), Ok(256));
        assert_eq!(fitting(cost, [tokens(i64::MAX), NONE, NONE]), Err((PayerKind::Workspace, Unit::Tokens)));
        assert_eq!(fitting(cost, [credits_of(i64::MAX), NONE, NONE]), Err((PayerKind::Workspace, Unit::Credits)));
    }

    #[test]
    fn an_amount_exceeds_the_first_limit_that_leaves_less() {
        let limits = BudgetLimits { tokens: Some(10), credits_millionths: Some(2_500_000) };
        let spent = Spent { tokens: 4, credits_millionths: 1_000_000, ..Spent::default() };
        let find = |tokens, credits_millionths| {
            let exceeded = Exceeded::find(PayerKind::User, limits, spent, Amount { tokens, credits_millionths });
            exceeded.map(|exceeded| exceeded.outcome("this call costs", "2026-11").message.unwrap())
        };
        assert_eq!(find(6, 1_500_000), None);
        assert_eq!(find(0, 0), None);
        assert_eq!(
            find(7, 9_000_000).as_deref(),
            Some("this call costs 7 tokens and exceeds the user's budget for 2026-11 (4 of 10 tokens are spent)")
        );
        assert_eq!(
            find(6, 1_500_001).as_deref(),
            Some(
                "this call costs 1.500001 credits and exceeds the user's budget for 2026-11 (1 of 2.5 credits are spent)"
            )
        );
    }
}
