//! Numbers that JSON has no notation for. `serde_json` writes NaN and infinity as `null`: then two values are one
//! request, and a kept result cannot be read any more.

use std::fmt::Display;

use serde::Serialize;
use serde::ser::{
    Error as _, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

type FiniteCheck = Result<(), serde_json::Error>;

/// Fails where the value has a number that is not finite.
pub(super) fn check(value: &(impl Serialize + ?Sized)) -> FiniteCheck {
    value.serialize(Finite)
}

/// Writes nothing.
struct Finite;

fn finite(is_finite: bool, number: impl Display) -> FiniteCheck {
    if is_finite {
        return Ok(());
    }
    let message = format!("{number} is no number in JSON");
    Err(serde_json::Error::custom(message))
}

macro_rules! nothing {
    ($($method:ident($($ty:ty),*);)*) => {
        $(fn $method(self, $(_: $ty),*) -> FiniteCheck { Ok(()) })*
    };
}

impl Serializer for Finite {
    type Ok = ();
    type Error = serde_json::Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    nothing! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    fn serialize_f32(self, number: f32) -> FiniteCheck {
        finite(number.is_finite(), number)
    }

    fn serialize_f64(self, number: f64) -> FiniteCheck {
        finite(number.is_finite(), number)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> FiniteCheck {
        check(value)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> FiniteCheck {
        check(value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> FiniteCheck {
        check(value)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Self::Error> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Self::Error> {
        Ok(self)
    }
}

/// What consists of parts is checked part by part.
macro_rules! parts {
    ($($of:ident: $($part:ident($($name:ty)?)),+;)*) => {$(
        impl $of for Finite {
            type Ok = ();
            type Error = serde_json::Error;

            $(fn $part<T: Serialize + ?Sized>(&mut self, $(_: $name,)? part: &T) -> FiniteCheck {
                check(part)
            })+

            fn end(self) -> FiniteCheck {
                Ok(())
            }
        }
    )*};
}

parts! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeMap: serialize_key(), serialize_value();
    SerializeStruct: serialize_field(&'static str);
    SerializeStructVariant: serialize_field(&'static str);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[derive(Serialize)]
    enum Shape {
        Unit,
        Newtype(f32),
        Tuple(u8, f64),
        Struct { side: Option<f64> },
    }

    fn shapes(number: f64) -> Vec<Shape> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "NaN and infinity stay what they are"
        )]
        let small = number as f32;
        let side = Some(number);
        vec![
            Shape::Newtype(small),
            Shape::Tuple(1, number),
            Shape::Struct { side },
        ]
    }

    #[test]
    fn a_number_that_is_not_finite_is_found_wherever_it_is() {
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for shape in shapes(number) {
                check(&shape).unwrap_err();
                check(&vec![HashMap::from([("shape", shape)])]).unwrap_err();
            }
            check(&(1, [number])).unwrap_err();
        }
    }

    #[test]
    fn all_that_json_can_represent_passes() {
        for shape in shapes(0.5) {
            check(&[shape, Shape::Unit]).unwrap();
        }
        check(&(
            f64::MAX,
            -0.0,
            "text",
            'c',
            true,
            u128::MAX,
            None::<f64>,
            (),
        ))
        .unwrap();
        check(&serde_json::json!({"a": [1, null, 2.5]})).unwrap();
    }
}
