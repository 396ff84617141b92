/* schema_format.c - the values of `format` that are enforced, as regular expressions. */
#include "libcommon/grammar/schema.h"

#include <string.h>

#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
#define H16 "[0-9A-Fa-f]{1,4}"
#define ALNUM "[A-Za-z0-9]"
#define LDH "[A-Za-z0-9-]"
/* RFC 1123, without "--" in the third and fourth place: such labels are encoded international
 * ones (RFC 5890), whose decoded form has rules of its own. */
#define LABEL ALNUM "(?:" ALNUM "|" LDH ALNUM "(?:" LDH "{0,59}" ALNUM ")?|" LDH "-" ALNUM "(?:" LDH "{0,58}" ALNUM ")?)?"
#define SHORT_LABEL ALNUM "(?:" ALNUM "|" LDH ALNUM "(?:" LDH "*" ALNUM ")?|" LDH "-" ALNUM "(?:" LDH "*" ALNUM ")?)?"
#define ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE "(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|" \
             "02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define IPV6 "(?:(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,7}:|(?:" H16 ":){1,6}:" H16 "|(?:" H16 ":){1,5}(?::" H16 "){1,2}|(?:" H16 ":){1,4}(?::" H16 "){1,3}|(?:" H16 ":){1,3}(?::" H16 "){1,4}|" \
             "(?:" H16 ":){1,2}(?::" H16 "){1,5}|" H16 ":(?::" H16 "){1,6}|:(?::" H16 "){1,7}|::)"

/* Parts of URIs (RFC 3986) and IRIs (RFC 3987): u is "" or, for IRIs, UCS, the characters beyond
 * ASCII. */
#define UCS "\\u{A0}-\\u{D7FF}\\u{F900}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}\\u{10000}-\\u{1FFFD}\\u{20000}-\\u{2FFFD}"
#define PERCENT "%[0-9A-Fa-f]{2}"
#define PCHAR(u) "(?:[A-Za-z0-9._~!$&'()*+,;=:@" u "-]|" PERCENT ")"
#define NO_COLON(u) "(?:[A-Za-z0-9._~!$&'()*+,;=@" u "-]|" PERCENT ")"
#define USER(u) "(?:[A-Za-z0-9._~!$&'()*+,;=:" u "-]|" PERCENT ")*@"
#define HOST(u) "(?:[A-Za-z0-9" u "](?:[A-Za-z0-9." u "-]*[A-Za-z0-9" u "])?|\\[" IPV6 "\\])"
#define SEGMENTS(u) "(?:/" PCHAR(u) "*)*"
#define ROOTED(u) "//(?:" USER(u) ")?" HOST(u) "(?::[0-9]{1,5})?" SEGMENTS(u) "|/(?:" PCHAR(u) "+" SEGMENTS(u) ")?"
#define TAIL(u) "(?:\\?(?:" PCHAR(u) "|[/?])*)?(?:#(?:" PCHAR(u) "|[/?])*)?"
#define URI(u) "[A-Za-z][A-Za-z0-9+.-]*:(?:" ROOTED(u) "|" PCHAR(u) "+" SEGMENTS(u) ")" TAIL(u)
#define RELATIVE(u) "(?:" ROOTED(u) "|" NO_COLON(u) "+" SEGMENTS(u) "|)" TAIL(u)
#define VARIABLE "(?:[A-Za-z0-9_]|" PERCENT ")(?:\\.?(?:[A-Za-z0-9_]|" PERCENT "))*(?::[1-9][0-9]{0,3}|\\*)?"

/* A subset of ECMA-262 regular expressions: characters, escapes, classes with the usual ranges,
 * repetitions, and groups that may have groups in them. */
#define RE_ESCAPE "\\\\[dDsSwWfnrtv0\\\\^$.*+?()\\[\\]{}|/-]"
#define RE_CLASS "\\[\\^?(?:a-z|A-Z|0-9|[^\\\\\\[\\]^-]|" RE_ESCAPE ")+-?\\]"
#define RE_ATOM(group) "(?:[^\\\\^$.*+?()\\[\\]{}|]|\\.|" RE_ESCAPE "|" RE_CLASS group ")"
#define RE_PIECES(group) "(?:\\\\[bB]|" RE_ATOM(group) "(?:[*+?]\\??|\\{[0-9]{1,3},?\\})?)*"
#define RE_GROUP(group) "|\\((?:\\?:)?" RE_PIECES(group) "(?:\\|" RE_PIECES(group) ")*\\)"
#define RE(group) "\\^?" RE_PIECES(group) "(?:\\|" RE_PIECES(group) ")*\\$?"

/* Each regular expression matches the texts of the RFC, or some of them: RFC 3339 (date, time,
 * date-time, duration), RFC 5321 without quoted names and address literals (email), RFC 1123
 * (hostname), RFC 2673 (ipv4), RFC 4291 without embedded IPv4 (ipv6), RFC 3986 and 3987 with a
 * host of letters, digits, dots and hyphens or an IPv6 address (uri, uri-reference, iri,
 * iri-reference), RFC 6570 (uri-template), RFC 6531 with an ASCII domain (idn-email), RFC 4122
 * (uuid), RFC 6901 (json-pointer) and its relative draft (relative-json-pointer), and
 * ECMA-262 (regex). */
static const char short_email[] = ATEXT "+(?:\\." ATEXT "+)*@" SHORT_LABEL "(?:\\." SHORT_LABEL ")+",
                  short_hostname[] = SHORT_LABEL "(?:\\." SHORT_LABEL ")*";

const char *schema_short_format(const char *name)
{
    return !strcmp(name, "email") ? short_email : !strcmp(name, "hostname") ? short_hostname : NULL;
}

const char *schema_format(const char *name)
{
    static const struct { const char *name, *regex; } table[] = {
        { "date", DATE },
        { "time", TIME },
        { "date-time", DATE "T" TIME },
        { "duration", "P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
                      "(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?|"
                      "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))" },
        { "email", ATEXT "{1,31}(?:\\." ATEXT "{1,30})?@" LABEL "(?:\\." LABEL "){1,2}" },
        { "hostname", LABEL "(?:\\." LABEL "){0,2}" },
        { "ipv4", IPV4 },
        { "ipv6", IPV6 },
        { "uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}" },
        { "uri", URI("") },
        { "uri-reference", URI("") "|" RELATIVE("") },
        { "iri", URI(UCS) },
        { "iri-reference", URI(UCS) "|" RELATIVE(UCS) },
        { "uri-template", "(?:[!#$&()*+,./0-9:;=?@A-Z[\\]_a-z~" UCS "-]|" PERCENT "|\\{[+#./;?&]?" VARIABLE "(?:,"
          VARIABLE ")*\\})*" },
        { "idn-email", "(?:" ATEXT "|[" UCS "]){1,31}(?:\\.(?:" ATEXT "|[" UCS "]){1,30})?@" LABEL "(?:\\." LABEL
          "){1,2}" },
        { "json-pointer", "(?:/(?:[^~/]|~[01])*)*" },
        { "regex", RE(RE_GROUP(RE_GROUP(""))) },
        { "relative-json-pointer", "(?:0|[1-9][0-9]{0,8})(?:#|(?:/(?:[^~/]|~[01])*)*)" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(name, table[i].name))
            return table[i].regex;
    return NULL;
}

const char *schema_exact_format(const char *name)
{
    static const char *const exact[] = { "date", "ipv4", "uuid", "json-pointer" };
    for (size_t i = 0; name && i < sizeof exact / sizeof *exact; i++)
        if (!strcmp(name, exact[i]))
            return schema_format(name);
    return NULL;
}
