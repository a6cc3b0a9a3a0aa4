//! Upper bound of the nesting depth of code, computed from its tokens before a parser recurses over
//! it.

use ruff_python_ast::token::TokenKind;
use ruff_python_parser::Mode;
use ruff_python_parser::lexer::lex;

/// Deepest nesting that is examined. CPython itself gives up far earlier: after 200 brackets or 100
/// blocks.
const MAX_NESTING_DEPTH: usize = 5000;

/// One pair of brackets, or the text outside all brackets.
#[derive(Default)]
struct NestingLevel {
    /// Number of tokens since the last comma, each of which may be a level of the syntax tree.
    tokens: usize,
    /// Number of `lambda`s whose colon has not come yet. A comma among their parameters ends no
    /// expression.
    lambdas: usize,
    /// True if a comma no longer ends the current expression.
    is_open: bool,
}

/// Returns true if code is nested too deeply to be examined. The function compares an upper bound
/// of the depth of the syntax tree.
///
/// Not only brackets nest: `1+1+1`, `not not x`, `a.b.c` and `f()()()` are as deep as they are
/// long. Therefore every token counts except names, numbers and text, until a comma or the end of a
/// line.
pub(super) fn is_too_deep(code: &str) -> bool {
    let mut lexer = lex(code, Mode::Module);
    let mut levels = vec![NestingLevel::default()];
    let (mut depth, mut blocks) = (0_usize, 0_usize);
    loop {
        let token = lexer.next_token();
        let is_outside = levels.len() == 1;
        let level = levels.last_mut().expect("the outermost level is never taken");
        match token {
            TokenKind::EndOfFile => return false,
            TokenKind::Indent => blocks += 1,
            TokenKind::Dedent => blocks = blocks.saturating_sub(1),
            TokenKind::Newline => {
                levels = vec![NestingLevel::default()];
                depth = 0;
            }
            TokenKind::Comma if level.lambdas == 0 && !level.is_open => {
                depth -= std::mem::take(&mut level.tokens)
            }
            TokenKind::Rpar | TokenKind::Rsqb | TokenKind::Rbrace if !is_outside => {
                depth -= levels.pop().map_or(0, |level| level.tokens);
            }
            token if is_leaf(token) => {}
            token => {
                level.tokens += 1;
                depth += 1;
                match token {
                    TokenKind::Lpar | TokenKind::Lsqb | TokenKind::Lbrace => {
                        levels.push(NestingLevel::default())
                    }
                    TokenKind::Lambda => level.lambdas += 1,
                    // A list may follow, or a whole statement, because the parser accepts one
                    // there.
                    TokenKind::Yield => level.is_open = true,
                    TokenKind::Colon if level.lambdas > 0 => level.lambdas -= 1,
                    TokenKind::Colon if is_outside => level.is_open = true,
                    _ => {}
                }
            }
        }
        if depth + blocks > MAX_NESTING_DEPTH {
            return true;
        }
    }
}

/// Returns true if a token is a leaf of the syntax tree: any number of leaves side by side is as
/// deep as one.
fn is_leaf(token: TokenKind) -> bool {
    matches!(
        token,
        TokenKind::Name
            | TokenKind::Int
            | TokenKind::Float
            | TokenKind::Complex
            | TokenKind::String
            | TokenKind::FStringMiddle
            | TokenKind::TStringMiddle
            | TokenKind::Comment
            | TokenKind::NonLogicalNewline
    )
}
