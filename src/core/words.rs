//! Enumerations whose values have one word each: on the wire, in stores, in metrics.

/// Declares an enumeration together with the words of its values.
///
/// Stores keep some of them as indexes of `ALL`: new values go to the end.
macro_rules! words {
    (
        $(#[$of_enum:meta])*
        pub enum $name:ident {
            $($(#[$of_value:meta])* $value:ident = $word:literal,)+
        }
    ) => {
        $(#[$of_enum])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$of_value])* $value,)+
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
                Self::ALL.into_iter().find(|value| value.as_str() == word)
            }
        }
    };
}

pub(crate) use words;
