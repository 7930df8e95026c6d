//! Enumerations whose values have one word each: on the wire, in stores, in metrics.

/// An enumeration whose values have one word each.
pub trait Words: Copy + 'static {
    /// Each word with its value, in the order in which they are declared.
    const WORDS: &'static [(&'static str, Self)];
}

/// Declares an enumeration together with the words of its values.
///
/// Stores keep some of them as indexes of `ALL`: new values go to the end.
#[doc(hidden)]
#[macro_export]
macro_rules! __words {
    (
        $(#[$of_enum:meta])*
        pub enum $name:ident {
            $($(#[$of_value:meta])* $value:ident = $word:literal),+ $(,)?
        }
    ) => {
        $(#[$of_enum])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$of_value])* $value,)+
        }

        impl $crate::words::Words for $name {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$value)),+];
        }

        impl $name {
            /// All values, in the order in which they are declared.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$value),+];

            /// The value as one word.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }

            /// The value that has this word.
            pub fn of(word: &str) -> Option<Self> {
                let words = <Self as $crate::words::Words>::WORDS.iter();
                words.copied().find_map(|(known, value)| (known == word).then_some(value))
            }
        }
    };
}

pub use __words as words;
