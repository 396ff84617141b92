# octal.awk - write the hexadecimal digits of the first field as bytes for printf, \000 to \377.
#
# usage: printf "$(sha256sum <FILE | awk -f scripts/octal.awk)"

{
  for (i = 1; i < length($1); i += 2)
    printf "\\%03o", 16 * digit(substr($1, i, 1)) + digit(substr($1, i + 1, 1))
}

function digit(c) {
  return index("0123456789abcdef", c) - 1
}
