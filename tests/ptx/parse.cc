/* parse.cc - parse the text of a module into kernels: declarations, registers, labels, calls. */
#include "tests/ptx/ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <deque>
#include <map>

struct declared { enum type type; long n; };            /* n: number of registers name0, name1 ..;
                                                         * -1: a single register */
struct scope {
    std::map<std::string, declared> families;
    std::map<std::string, operand> names;               /* registers in use, variables */
    std::map<std::string, int> labels;
    int parent;
};
struct function { std::string header, body; bool entry; };

struct module {
    std::map<std::string, function> functions;
    std::map<std::string, uint64_t> variables;          /* addresses of .global and .const variables */
    /* names of the shared variables that the module itself declares */
    std::vector<std::string> shared;
    std::vector<std::string> files;
    std::map<std::string, std::unique_ptr<kernel>> kernels;
    std::deque<std::vector<uint8_t>> data;
};

static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }

static std::string trimmed(const std::string &s)
{
    size_t i = 0, n = s.size();
    while (i < n && isspace((unsigned char)s[i]))
        i++;
    while (n > i && isspace((unsigned char)s[n - 1]))
        n--;
    return s.substr(i, n - i);
}

/* Split the operands of a statement at commas outside of brackets. */
static std::vector<std::string> split(const std::string &s)
{
    std::vector<std::string> out;
    int depth = 0;
    size_t from = 0;
    for (size_t i = 0; i <= s.size(); i++) {
        if (i < s.size() && strchr("[{(", s[i]))
            depth++;
        if (i < s.size() && strchr("]})", s[i]))
            depth--;
        if (i < s.size() && (s[i] != ',' || depth))
            continue;
        if (i > from)
            out.push_back(trimmed(s.substr(from, i - from)));
        from = i + 1;
    }
    return out;
}

static const char *const type_names[] = { "b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32",
                                          "s64", "f16", "f16x2", "f32", "f64", "pred" };
static enum type type_of(const std::string &s)
{
    for (int i = 0; i < NO_TYPE; i++)
        if (s == type_names[i])
            return (enum type)i;
    return NO_TYPE;
}
int bits_of(enum type t)
{
    static const uint8_t bits[] = { 8, 16, 32, 64, 8, 16, 32, 64, 8, 16, 32, 64, 16, 32, 32, 64, 1, 0 };
    return bits[t];
}

bool statement::has(const char *part) const
{
    for (const std::string &s : word)
        if (s == part)
            return true;
    return false;
}
enum type statement::type(size_t from_end) const
{
    return from_end < word.size() ? type_of(word[word.size() - 1 - from_end]) : NO_TYPE;
}

/* A variable: `.align 16 .b8 name[20]`, `.u64 name`, with the state space before them. */
struct variable { std::string name; size_t size, align; };
static variable variable_of(const std::string &text)
{
    variable v = { "", 0, 0 };
    size_t element = 0, i = 0;
    while (i < text.size()) {
        if (isspace((unsigned char)text[i])) {
            i++;
            continue;
        }
        const size_t from = i++;
        while (i < text.size() && (is_name(text[i])))
            i++;
        const std::string word = text.substr(from, i - from);
        if (word == ".align")
            v.align = strtoul(&text[i], nullptr, 10);
        else if (word[0] == '.' && type_of(word.substr(1)) != NO_TYPE)
            element = (size_t)bits_of(type_of(word.substr(1))) / 8;
        else if (word[0] == '[')
            v.size = element * strtoul(word.c_str() + 1, nullptr, 10), i = text.size();
        else if (word[0] != '.' && !isdigit((unsigned char)word[0]))
            v.name = word, v.size = element;
    }
    if (!v.align)
        v.align = element ? element : 1;
    return v;
}

static std::string without_comments(const char *text, size_t size)
{
    std::string out;
    out.reserve(size);
    for (size_t i = 0; i < size && text[i]; i++) {
        if (text[i] == '/' && i + 1 < size && text[i + 1] == '/')
            while (i < size && text[i] != '\n')
                i++;
        out += i < size ? text[i] : '\n';
    }
    return out;
}

static size_t end_of_line(const std::string &t, size_t i)
{
    const size_t end = t.find('\n', i);
    return end == std::string::npos ? t.size() : end;
}
static size_t matching(const std::string &t, size_t i)
{
    int depth = 0;
    for (; i < t.size(); i++)
        if (t[i] == '{')
            depth++;
        else if (t[i] == '}' && --depth == 0)
            return i;
    fail("a module of PTX ends within a block");
}

static void define(module *m, const std::string &header, const std::string &values)
{
    const variable v = variable_of(header);
    if (header.find(".shared") != std::string::npos) {
        m->shared.push_back(header);
        return;
    }
    m->data.emplace_back(v.size + v.align, 0);
    uint8_t *p = m->data.back().data();
    p += (v.align - (uintptr_t)p % v.align) % v.align;
    size_t i = 0;
    const size_t element = header.find(".b8") != std::string::npos ? 1 : 0;
    for (const std::string &x : split(values)) {
        if (!element)
            fail("%s: values of this type are not known", header.c_str());
        if (i < v.size)
            p[i++] = (uint8_t)strtoul(x.c_str(), nullptr, 0);
    }
    m->variables[v.name] = (uint64_t)p;
    region_add(p, v.size, header.find(".const") == std::string::npos);
}

static std::string function_name(std::string header)
{
    const size_t entry = header.find(".entry");
    if (entry == std::string::npos) {
        header = header.substr(header.find(".func") + 5);
        const std::string t = trimmed(header);
        header = t[0] == '(' ? t.substr(t.find(')') + 1) : t;
    } else {
        header = header.substr(entry + 6);
    }
    return trimmed(header.substr(0, header.find('(')));
}

/* Returns the part of the path from gpu/ or tests/ on; "" for other files, which are headers of
 * CUDA. */
static std::string source_name(const std::string &path)
{
    for (const char *folder : { "/gpu/", "/tests/" }) {
        const size_t at = path.rfind(folder);
        if (at != std::string::npos)
            return path.substr(at + 1);
    }
    return path.compare(0, 4, "gpu/") && path.compare(0, 6, "tests/") ? "" : path;
}

module *module_open(const char *text, size_t size)
{
    module *m = new module;
    const std::string t = without_comments(text, size);
    for (size_t i = 0; i < t.size();) {
        if (isspace((unsigned char)t[i])) {
            i++;
            continue;
        }
        for (const char *line : { ".version", ".target", ".address_size", ".file" })
            if (!t.compare(i, strlen(line), line)) {
                const size_t end = end_of_line(t, i);
                if (line[1] == 'f') {                   /* .file 1 "gpu/kernels/rows.cu" */
                    const size_t at = strtoul(&t[i + 5], nullptr, 10), quote = t.find('"', i) + 1;
                    if (m->files.size() <= at)
                        m->files.resize(at + 1);
                    m->files[at] = source_name(t.substr(quote, t.find('"', quote) - quote));
                }
                i = end;
                break;
            }
        if (isspace((unsigned char)t[i]))
            continue;
        const size_t end = t.find_first_of(";{", i);
        if (end == std::string::npos)
            break;
        const std::string header = t.substr(i, end - i);
        const bool is_function =
            header.find(".entry") != std::string::npos || header.find(".func") != std::string::npos;
        if (t[end] == ';') {
            if (!is_function)
                define(m, header, "");
            i = end + 1;
            continue;
        }
        const size_t close = matching(t, end);
        const std::string body = t.substr(end + 1, close - end - 1);
        if (is_function)
            m->functions[function_name(header)] = { header, body, header.find(".entry") != std::string::npos };
        else if (header.find('=') != std::string::npos)
            define(m, header.substr(0, header.find('=')), body);
        i = close + 1;
        if (i < t.size() && t[i] == ';')
            i++;
    }
    return m;
}

/* ---- one kernel with the functions that it calls ---- */

struct builder : assembler {
    module *m;
    kernel *k;
    std::vector<scope> scopes;
    std::map<std::pair<uint64_t, bool>, uint32_t> numbers;
    struct function_place { int start; uint32_t return_pc; std::vector<operand> formals, result; };
    std::map<std::string, function_place> placed;
    std::deque<std::string> wanted;
    struct fix { size_t op; std::string label; int scope; };
    std::vector<fix> fixes;
    int now = 0, line = 0, file = 0;    /* scope; place in the source */
    std::string inside;                 /* name of the function that is being parsed; empty: the
                                         * kernel itself */

    uint32_t allocate(size_t bytes)
    {
        const uint32_t at = (uint32_t)k->register_bytes;
        k->register_bytes += bytes;
        return at;
    }
    uint32_t number(uint64_t value, bool wide) override
    {
        if (!wide)
            value = (uint32_t)value;
        auto [it, is_new] = numbers.try_emplace({ value, wide }, 0);
        if (is_new) {
            it->second = allocate(LANES * (wide ? 8 : 4));
            k->constants.push_back({ it->second, wide, value });
        }
        return it->second;
    }
    operand make(enum type t, const std::string &name)
    {
        operand o;
        o.kind = t == PRED ? operand::PREDICATE : operand::REGISTER;
        o.wide = bits_of(t) == 64;
        o.at = t == PRED ? (uint32_t)k->n_predicates++ : allocate(LANES * (o.wide ? 8 : 4));
        o.name = name;
        return o;
    }
    static operand number_operand(uint64_t value)
    {
        operand o;
        o.kind = operand::NUMBER;
        o.value = value;
        return o;
    }
    void open_scope()
    {
        scopes.emplace_back();
        scopes.back().parent = now;
        now = (int)scopes.size() - 1;
    }
    void declare(const std::string &text)
    {
        if (text.compare(0, 4, ".reg")) {
            const variable v = variable_of(text);
            if (!text.compare(0, 7, ".shared")) {
                k->shared_bytes = (k->shared_bytes + v.align - 1) / v.align * v.align;
                scopes[now].names[v.name] = number_operand(k->shared_bytes);
                k->shared_bytes += v.size;
                return;
            }
            if (text.compare(0, 6, ".local") && text.compare(0, 6, ".param"))
                fail("%s: not known", text.c_str());
            scopes[now].names[v.name] = local(v);
            return;
        }
        const std::string rest = trimmed(text.substr(4));
        const size_t space = rest.find_first_of(" \t");
        const enum type t = type_of(rest.substr(1, space - 1));
        if (t == NO_TYPE)
            fail("%s: not known", text.c_str());
        for (const std::string &name : split(rest.substr(space))) {
            const size_t open = name.find('<');
            if (open == std::string::npos)
                scopes[now].names[name] = make(t, name);
            else
                scopes[now].families[name.substr(0, open)] = { t, atol(name.c_str() + open + 1) };
        }
    }
    /* Allocate a variable in each thread's local memory, where parameters of functions are, too. */
    operand local(const variable &v)
    {
        const size_t align = v.align < 16 ? 16 : v.align;
        k->local_bytes = (k->local_bytes + align - 1) / align * align;
        operand o = number_operand(k->local_bytes);
        /* `wide` and `at`, the size, are for calls, which copy the variable */
        o.wide = true;
        o.at = (uint32_t)v.size;
        k->local_bytes += v.size;
        return o;
    }
    operand special(const std::string &name)
    {
        static const char *const names[] = { "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x",
                                             "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid",
                                             "%warpid" };
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (name == names[i]) {
                operand o = make(U32, name);
                k->specials.push_back({ o.at, (enum special)i });
                return scopes[0].names[name] = o;
            }
        fail("the name %s is not known", name.c_str());
    }
    operand find(const std::string &name)
    {
        size_t digits = name.size();
        while (digits > 1 && isdigit((unsigned char)name[digits - 1]))
            digits--;
        for (int s = now; s >= 0; s = scopes[s].parent) {
            auto it = scopes[s].names.find(name);
            if (it != scopes[s].names.end())
                return it->second;
            auto family = scopes[s].families.find(name.substr(0, digits));
            if (family != scopes[s].families.end() && digits < name.size() &&
                atol(name.c_str() + digits) < family->second.n)
                return scopes[s].names[name] = make(family->second.type, name);
        }
        auto v = m->variables.find(name);
        if (v != m->variables.end())
            return number_operand(v->second);
        if (name[0] == '%')
            return special(name);
        operand o;
        o.kind = operand::LABEL;
        o.name = name;
        return o;
    }
    operand parse(std::string s)
    {
        operand o;
        s = trimmed(s);
        if (s == "_")
            return o;
        if (s[0] == '{' || s[0] == '(') {
            o.kind = operand::VECTOR;
            for (const std::string &x : split(s.substr(1, s.size() - 2)))
                o.v.push_back(parse(x));
            return o;
        }
        if (s[0] == '[') {
            const std::vector<std::string> parts = split(s.substr(1, s.size() - 2));
            o.kind = operand::ADDRESS;
            size_t plus = parts[0].find('+');
            o.v.push_back(parse(parts[0].substr(0, plus)));
            if (plus != std::string::npos)
                o.value = strtoull(parts[0].c_str() + plus + 1, nullptr, 0);
            for (size_t i = 1; i < parts.size(); i++)
                o.v.push_back(parse(parts[i]));
            return o;
        }
        if (s[0] == '!') {
            o = parse(s.substr(1));
            o.negated = true;
            return o;
        }
        if (s[0] == '0' && s.size() > 2 && (s[1] == 'f' || s[1] == 'd' || s[1] == 'F' || s[1] == 'D'))
            return number_operand(strtoull(s.c_str() + 2, nullptr, 16));
        if (isdigit((unsigned char)s[0]) || s[0] == '-')
            return number_operand(strtoull(s.c_str(), nullptr, 0));
        if (s.find('|') != std::string::npos) {
            o.kind = operand::VECTOR;
            o.v = { parse(s.substr(0, s.find('|'))), parse(s.substr(s.find('|') + 1)) };
            return o;
        }
        return find(s);
    }
    op &emit(op &o, const std::string &text)
    {
        o.text = text;
        o.line = line;
        o.file = file;
        k->ops.push_back(std::move(o));
        return k->ops.back();
    }
    void call(const statement &s, const std::string &text);
    void instruction(const std::string &text);
    void body(const std::string &text);
    void formals(const std::string &list, std::vector<operand> &out, bool entry);
    void place(const std::string &name);
    void place_of(const std::string &text);
};

/* ---- control ---- */

static void run_bra(warp &w, const op &o, uint32_t on)
{
    if (on == w.active) {
        w.pc = (int)o.imm;
        if (w.next != NEVER)
            save(w), regroup(w);
        return;
    }
    save(w);
    EACH_LANE(i, on)
        w.lane_pc[i] = (int)o.imm;
    regroup(w);
}
static void run_exit(warp &w, const op &, uint32_t on)
{
    if (on & ~w.waited)
        check_waited(__builtin_ctz(on & ~w.waited), "end");
    save(w);
    w.live &= ~on;
    regroup(w);
}
/* copy a parameter; a: from, to, size */
static void run_copy(warp &w, const op &o, uint32_t on)
{
    EACH_LANE(i, on) {
        uint8_t *base = w.local + i * vm.k->local_bytes;
        memcpy(base + o.a[1], base + o.a[0], o.a[2]);
    }
}
static void run_call(warp &w, const op &o, uint32_t on)
{
    EACH_LANE(i, on)
        lane_of<uint32_t>(w.file, o.a[0], (int)i) = (uint32_t)w.pc;
    run_bra(w, o, on);
}
static void run_return(warp &w, const op &o, uint32_t on)
{
    save(w);
    EACH_LANE(i, on)
        w.lane_pc[i] = (int)lane_of<uint32_t>(w.file, o.a[0], (int)i);
    regroup(w);
}

void builder::call(const statement &s, const std::string &text)
{
    std::vector<operand> results, arguments;
    std::string name;
    for (const operand &x : s.o) {
        if (x.kind == operand::LABEL)
            name = x.name;
        else if (x.kind == operand::VECTOR)
            (name.empty() ? results : arguments) = x.v;
    }
    if (!m->functions.count(name))
        fail("%s: there is no such function", text.c_str());
    if (!placed.count(name)) {
        function_place &f = placed[name];
        const std::string &h = m->functions[name].header, t = trimmed(h.substr(h.find(".func") + 5));
        f.return_pc = allocate(LANES * 4);
        const int caller = now;
        now = 0;
        open_scope();
        if (t[0] == '(')
            formals(t.substr(1, t.find(')') - 1), f.result, false);
        formals(h.substr(h.rfind('(') + 1, h.rfind(')') - h.rfind('(') - 1), f.formals, false);
        /* the number of its scope, replaced by its address when the function is placed */
        f.start = -now;
        now = caller;
        wanted.push_back(name);
    }
    const function_place &f = placed[name];
    if (f.formals.size() != arguments.size() || f.result.size() != results.size())
        fail("%s: another number of parameters", text.c_str());
    for (size_t i = 0; i < arguments.size(); i++) {
        op o;
        o.run = run_copy;
        o.a[0] = (uint32_t)arguments[i].value, o.a[1] = (uint32_t)f.formals[i].value, o.a[2] = f.formals[i].at;
        emit(o, text);
    }
    op o;
    o.run = run_call;
    o.a[0] = f.return_pc;
    fixes.push_back({ k->ops.size(), name, -1 });
    emit(o, text);
    for (size_t i = 0; i < results.size(); i++) {
        op r;
        r.run = run_copy;
        r.a[0] = (uint32_t)f.result[i].value, r.a[1] = (uint32_t)results[i].value, r.a[2] = f.result[i].at;
        emit(r, text);
    }
}

void builder::instruction(const std::string &text)
{
    op o;
    statement s;
    std::string rest = text;
    if (rest[0] == '@') {
        const size_t space = rest.find_first_of(" \t");
        const operand p = parse(rest.substr(1, space - 1));
        if (p.kind != operand::PREDICATE)
            fail("%s: the guard is no predicate", text.c_str());
        o.guard = (int)p.at;
        o.guard_not = p.negated;
        rest = trimmed(rest.substr(space));
    }
    size_t end = rest.find_first_of(" \t\n");
    if (end == std::string::npos)
        end = rest.size();
    s.full = rest.substr(0, end);
    for (size_t i = 0, from = 0; i <= s.full.size(); i++)
        if (i == s.full.size() || s.full[i] == '.')
            s.word.push_back(s.full.substr(from, i - from)), from = i + 1;
    for (const std::string &x : split(rest.substr(end)))
        s.o.push_back(parse(x));
    const std::string &base = s.word[0];
    if (base == "bra") {
        o.run = run_bra;
        fixes.push_back({ k->ops.size(), s.o[0].name, now });
    } else if (base == "ret" || base == "exit") {
        o.run = base == "exit" || inside.empty() ? run_exit : run_return;
        if (!inside.empty())
            o.a[0] = placed[inside].return_pc;
    } else if (base == "call") {
        if (o.guard >= 0)
            fail("%s: a call with a guard", text.c_str());
        return call(s, text);
    } else if (!decode_alu(*this, s, o) && !decode_memory(*this, s, o) && !decode_warp(*this, s, o)) {
        if (!decode_hopper(*this, s, o))
            fail("the instruction `%s` is not known", text.c_str());
        o.copy_engine = base != "fence";
    }
    emit(o, text);
}

/* Find the source line of a position such as "1 66 9, function_name $L__info_string0, inlined_at 2
 * 48 7": the first one that is in our sources. */
void builder::place_of(const std::string &text)
{
    for (size_t i = 0; i != std::string::npos;) {
        char *end;
        file = (int)strtol(&text[i], &end, 10);
        line = (int)strtol(end, nullptr, 10);
        if ((size_t)file < m->files.size() && !m->files[(size_t)file].empty())
            return;
        i = text.find("inlined_at", i);
        if (i != std::string::npos)
            i += strlen("inlined_at");
    }
}

void builder::body(const std::string &t)
{
    const int outer = now;
    for (size_t i = 0; i < t.size();) {
        if (isspace((unsigned char)t[i]) || t[i] == ';') {
            i++;
        } else if (t[i] == '{') {
            open_scope();
            i++;
        } else if (t[i] == '}') {
            now = scopes[now].parent;
            i++;
        } else if (!t.compare(i, 4, ".loc") && isspace((unsigned char)t[i + 4])) {
            place_of(t.substr(i + 4, end_of_line(t, i) - i - 4));
            i = end_of_line(t, i);
        } else {
            size_t name = i;
            while (name < t.size() && is_name(t[name]))
                name++;
            if (name > i && t[name] == ':' && t[name + 1] != ':') {
                scopes[now].labels[t.substr(i, name - i)] = (int)k->ops.size();
                i = name + 1;
                continue;
            }
            const size_t end = t.find(';', i);
            if (end == std::string::npos)
                fail("`%.60s` has no end", &t[i]);
            std::string one = trimmed(t.substr(i, end - i));
            for (char &c : one)
                if (isspace((unsigned char)c))
                    c = ' ';
            if (one[0] != '.')
                instruction(one);
            else if (one.compare(0, 7, ".pragma"))
                declare(one);
            i = end + 1;
        }
    }
    now = outer;
}

void builder::formals(const std::string &list, std::vector<operand> &out, bool entry)
{
    size_t at = 0;
    for (const std::string &text : split(list)) {
        const variable v = variable_of(text);
        if (!entry) {
            out.push_back(scopes[now].names[v.name] = local(v));
            continue;
        }
        at = (at + v.align - 1) / v.align * v.align;
        k->parameters.push_back({ at, v.size });
        scopes[now].names[v.name] = number_operand(at);         /* moved to the place of the arguments below */
        at += v.size;
    }
    if (!entry)
        return;
    k->arguments.assign(at + 128, 0);
    uint8_t *p = k->arguments.data();
    p += (128 - (uintptr_t)p % 128) % 128;
    for (auto &[name, o] : scopes[now].names)
        o.value += (uint64_t)p;
    for (parameter &x : k->parameters)
        x.at += (size_t)(p - k->arguments.data());
    region_add(p, at, false);
}

void builder::place(const std::string &name)
{
    function_place &f = placed[name];
    const int scope = -f.start;
    f.start = (int)k->ops.size();
    inside = name;
    now = scope;
    body(m->functions[name].body);
}

kernel *module_kernel(module *m, const std::string &name)
{
    std::unique_ptr<kernel> &k = m->kernels[name];
    if (k)
        return k.get();
    auto it = m->functions.find(name);
    if (it == m->functions.end() || !it->second.entry)
        fail("the module has no kernel %s", name.c_str());
    auto made = std::make_unique<kernel>();
    made->register_bytes = LANES * 4;   /* 0 stands for no operand */
    builder b;
    b.m = m;
    b.k = made.get();
    b.scopes.emplace_back();
    b.scopes[0].parent = -1;
    made->name = name;
    made->files = m->files;
    const std::string &h = it->second.header;
    try {
        const size_t open = h.find('('), close = h.find(')', open);
        if (open != std::string::npos)
            b.formals(h.substr(open + 1, close - open - 1), *std::make_unique<std::vector<operand>>(), true);
        for (const std::string &s : m->shared)
            if (s.find(".extern") == std::string::npos)
                b.declare(trimmed(s.substr(s.find(".shared"))));
        const size_t most = h.find(".maxntid");
        if (most != std::string::npos)
            made->most_threads = atoi(h.c_str() + most + 8);
        /* dynamic shared memory follows static shared memory */
        for (const std::string &s : m->shared)
            if (s.find(".extern") != std::string::npos)
                b.scopes[0].names[variable_of(s).name] = builder::number_operand((made->shared_bytes + 15) / 16 * 16);
        b.open_scope();
        b.body(it->second.body);
        while (!b.wanted.empty()) {
            const std::string next = b.wanted.front();
            b.wanted.pop_front();
            b.place(next);
        }
        for (const builder::fix &f : b.fixes) {
            int s = f.scope;
            if (s < 0) {
                made->ops[f.op].imm = b.placed[f.label].start;
                continue;
            }
            while (s >= 0 && !b.scopes[s].labels.count(f.label))
                s = b.scopes[s].parent;
            if (s < 0)
                fail("there is no label %s", f.label.c_str());
            made->ops[f.op].imm = b.scopes[s].labels[f.label];
        }
    } catch (const fault &f) {
        fail("kernel %s: %s:%d: %s", name.c_str(), b.file < (int)m->files.size() ? m->files[b.file].c_str() : "?",
             b.line, f.what());
    }
    op last;                            /* an exit, for a kernel that does not end with ret */
    last.run = run_exit;
    last.text = "the end";
    made->ops.push_back(std::move(last));
    made->local_bytes = (made->local_bytes + 15) / 16 * 16;
    k = std::move(made);
    return k.get();
}

uint32_t source(assembler &as, const operand &o, bool wide)
{
    if (o.kind == operand::NUMBER)
        return as.number(o.value, wide);
    if (o.kind != operand::REGISTER || o.wide != wide)
        fail("operand %s: expected a register of %d bits", o.name.c_str(), wide ? 64 : 32);
    return o.at;
}
uint32_t target(const operand &o, bool wide)
{
    if (o.kind != operand::REGISTER || o.wide != wide)
        fail("operand %s: expected a register of %d bits", o.name.c_str(), wide ? 64 : 32);
    return o.at;
}
uint32_t predicate(const operand &o)
{
    if (o.kind != operand::PREDICATE || o.negated)
        fail("operand %s: expected a predicate", o.name.c_str());
    return o.at;
}
