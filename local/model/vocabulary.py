"""Words that say nothing about what a text is about."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Too common to tell one tool from another.
COMMON = _words(
    "get current find fetch lookup look tool tools the and for from with this that a an do run make all any use used "
    "using given return returns value values what when where which who how are is was were can could will would "
    "you your please give tell show me my it of in on at to by or not one two"
)
# A text of these alone is about nothing.
DULL = _words(
    "a an the and or but of to in on at for from with by is are was were be been am i me my name you your it its this "
    "that these those what when where which who why how do does did can could will would shall should please tell "
    "show give write make let us we our there here some any have has had about hello hi hey thanks thank"
)
# Capitalised, but no place.
NOT_PLACES = _words(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August "
    "September October November December I Please"
)
