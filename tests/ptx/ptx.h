/* ptx.h - an interpreter of PTX, for tests: it runs the code that nvcc made on a machine without a
 * GPU.  parse.cc parses the text into operations, decode.cc and memory.cc implement them,
 * machine.cc runs a grid of blocks, blocks.cc checks the order of their accesses, cudart.cc
 * implements the functions of the CUDA runtime.
 *
 * The registers of a warp's 32 lanes lie side by side.  Of all lanes of a warp, those at the lowest
 * address execute the next operation.  Blocks run one after the other; those of a cooperative
 * launch exist at the same time and take turns, each until its threads wait or their polls fail.
 * The seed (ZSE_PTX_SEED) determines the order of warps, and of turns.  A fault for which hardware
 * would give a wrong number or an error ends the kernel with a message that names kernel, block,
 * thread and source line. */
#ifndef ZSE_TESTS_PTX_PTX_H
#define ZSE_TESTS_PTX_PTX_H

#include <stddef.h>
#include <stdint.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

/* N_SMS: multiprocessors, each with room for one block of a cooperative launch. */
enum { LANES = 32, ALL_LANES = -1, MAX_THREADS = 1024, N_BARRIERS = 16, N_POLLS = 16, N_SMS = 4, NEVER = 0x7fffffff };

struct fault : std::runtime_error { using std::runtime_error::runtime_error; };
[[noreturn]] void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- code ---- */

enum type : uint8_t { B8, B16, B32, B64, U8, U16, U32, U64, S8, S16, S32, S64, F16, F16X2, F32, F64, PRED, NO_TYPE };
enum space : uint8_t { GENERIC, GLOBAL, CONST, SHARED, LOCAL };

struct warp;
struct op;
/* Executes o for the lanes of the mask ON, which is not 0. */
typedef void (*handler)(warp &w, const op &o, uint32_t on);

struct op {
    handler run = nullptr;
    uint32_t a[5] = {};                 /* operands: byte offsets of registers in the warp's
                                         * register file, or numbers of predicates */
    std::vector<uint32_t> more;         /* more operands, for operations with vectors */
    int64_t imm = 0;                    /* an offset, a target, a constant */
    int guard = -1;                     /* predicate; -1: none */
    bool guard_not = false, wide = false, wide_address = false;     /* registers of 64 bits */
    bool read_only = false;             /* a load by way of the read-only cache: ld.global.nc */
    bool copy_engine = false;           /* an mbarrier, a copy of a tile, or wgmma */
    enum space space = GENERIC;
    int line = 0, file = 0;             /* line and file of the source */
    std::string text;                   /* text of the operation, for messages */
    /* the allocation that the last access hit */
    mutable uintptr_t low = 0, high = 0;
    mutable unsigned n_changes = 0;
};

struct constant { uint32_t at; bool wide; uint64_t value; };
enum special : uint8_t { TID_X, TID_Y, TID_Z, NTID_X, NTID_Y, NTID_Z, CTAID_X, CTAID_Y, CTAID_Z, NCTAID_X, NCTAID_Y,
                         NCTAID_Z, LANEID, WARPID };
struct special_register { uint32_t at; enum special which; };
struct parameter { size_t at, size; };

struct kernel {
    std::string name;
    std::vector<op> ops;
    std::vector<constant> constants;
    std::vector<special_register> specials;
    std::vector<parameter> parameters;
    std::vector<std::string> files;
    std::vector<uint8_t> arguments;     /* arguments of the current launch */
    size_t register_bytes = 0, n_predicates = 0, shared_bytes = 0, local_bytes = 0;
    int most_threads = MAX_THREADS;
};

struct module;
struct module *module_open(const char *text, size_t size);
/* The kernel of this name, which is parsed when it is first requested; throws a fault. */
kernel *module_kernel(module *m, const std::string &name);

/* ---- one statement, while it is converted from text to an op ---- */

struct operand {
    enum kind { NONE, REGISTER, PREDICATE, NUMBER, VECTOR, ADDRESS, LABEL } kind = NONE;
    bool wide = false, negated = false;
    uint32_t at = 0;
    uint64_t value = 0;                 /* a number; the offset of an address */
    std::vector<operand> v;             /* elements; of an address: its base and coordinates */
    std::string name;
};
struct statement {
    std::vector<std::string> word;      /* parts of the mnemonic between points */
    std::string full;
    std::vector<operand> o;
    bool has(const char *part) const;
    enum type type(size_t from_end = 0) const;      /* the type suffix, counted from the end of the mnemonic */
};
/* The part of the parser that decoders call: it provides registers that hold constants. */
struct assembler {
    virtual uint32_t number(uint64_t value, bool wide) = 0;
    virtual ~assembler() {}
};
/* The register of an operand that is read as 32 or 64 bits; throws a fault if the register has
 * another width. */
uint32_t source(assembler &as, const operand &o, bool wide);
uint32_t target(const operand &o, bool wide);
uint32_t predicate(const operand &o);
/* Each decodes s into o, and returns false if another decoder has to do so. */
bool decode_alu(assembler &as, const statement &s, op &o);
bool decode_memory(assembler &as, const statement &s, op &o);
bool decode_warp(assembler &as, const statement &s, op &o);
bool decode_hopper(assembler &as, const statement &s, op &o);
int bits_of(enum type t);

/* ---- execution ---- */

struct warp {
    uint8_t *file;                      /* registers: 32 lanes of 4 or 8 bytes */
    uint32_t *predicate;                /* a bit a lane */
    uint8_t *local;                     /* [32][local_bytes] */
    int pc, next;                       /* pc: address of the active lanes; next: lowest address of
                                         * the other lanes that can run */
    uint32_t active, live, parked;      /* parked: waiting for other lanes, warps or copies */
    int lane_pc[LANES];                 /* addresses of the lanes that are not active */
    uint32_t at_barrier[N_BARRIERS], at_phase, carry;
    uint32_t phase_of[LANES];           /* the mbarrier that a lane of at_phase waits for */
    /* at_poll: lanes whose last poll read the same value as the same poll before.  woken: lanes
     * that were at_poll and run to poll again. */
    uint32_t at_poll, woken;
    /* a lane's last polls at different places of the code; oldest: the entry for the next one */
    struct { int pc; uint64_t address, value[2]; } polled[LANES][N_POLLS];
    uint8_t oldest_poll[LANES];
    int index;
    unsigned n_collectives;             /* orders accesses of the lanes */
    uint32_t waited;                    /* lanes that have executed griddepcontrol.wait, or need not */
};

/* How a kernel is ordered after the one before it.  PLAIN: it begins after its end, and knows
 * nothing of dependent launches.  FIRST and DEPENDENT: it was launched with the attribute of
 * dependent launches, as 0 or 1.  Both have to wait before they end and before they write to global
 * memory.  Before that a DEPENDENT kernel may not read what kernels have written since the last one
 * that was not DEPENDENT began: they may all still run, because each of them may begin before the
 * one before it has waited.  If the kernel before has waited before it let its dependent begin
 * (launched_early is false), only its own results are not there yet. */
enum dependence { PLAIN, FIRST, DEPENDENT };

/* The state of the launch that runs; there is one machine, because launches run one after the
 * other. */
struct machine {
    kernel *k;
    unsigned grid[3], block[3], n_threads;
    std::vector<warp> warps;
    uint8_t *shared;
    size_t shared_size;
    unsigned epoch, first_epoch;        /* epoch: barriers passed so far; first_epoch: the same at
                                         * the start of this block */
    unsigned cta[3];
    const op *now;
    const warp *now_warp;
    uint32_t now_on;
    enum dependence dependence;
    bool launched_early;                /* launch_dependents before wait, in any thread */
    bool yield;                         /* the running warp lets the others run first */
    bool together;                      /* a cooperative launch: all blocks exist at the same time */
    unsigned block_index;               /* the number of the block in a cooperative launch */
    bool turn_over;                     /* the running block lets the others run first */
    bool progress;                      /* a thread has run that does not poll, or a poll read a new value */
};
extern machine vm;

/* Runs a grid, whose blocks run at the same time if `together`; throws a fault. */
void run_grid(kernel *k, const unsigned grid[3], const unsigned block[3], size_t dynamic_shared,
              enum dependence dependence, bool together);
/* save: store the addresses of the active lanes.  regroup: choose the lanes that run next. */
void save(warp &w);
void regroup(warp &w);
void arrive(warp &w, uint32_t on, int barrier, unsigned n_threads);
/* True if all lanes of `mask` that have not ended have arrived at this operation; `on` is then all
 * of them.  If not, the lanes of `on` wait. */
bool gather(warp &w, uint32_t mask, uint32_t &on);
[[noreturn]] void fail_at(int lane, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
uint64_t draw(uint64_t n);              /* 0 to n - 1, from the seed */
void draw_from(uint64_t seed);          /* another seed than ZSE_PTX_SEED; 0: draw() returns 0 */

template <class T> static inline T &lane_of(uint8_t *file, uint32_t at, int i) { return ((T *)(file + at))[i]; }
static inline uint64_t address_of(const warp &w, const op &o, uint32_t at, int i)
{
    return o.wide_address ? lane_of<uint64_t>(w.file, at, i) : lane_of<uint32_t>(w.file, at, i);
}
#define EACH_LANE(i, on) \
    for (uint32_t left_ = (on), i; left_ && (i = (uint32_t)__builtin_ctz(left_), true); left_ &= left_ - 1)

/* ---- memory ---- */

enum access { READ, WRITE, ATOMIC, POLL };      /* POLL: ld.acquire, ld.relaxed */
const char *verb(enum access a);
/* region_of: the allocation of cudart.cc that contains the address.  n_changes: number of changes
 * of the list of allocations so far. */
struct region { uintptr_t low, high; bool writable; };
extern unsigned n_changes;
bool region_of(uintptr_t p, region &r);
void region_add(void *p, size_t size, bool writable);
void region_remove(void *p);

void block_memory_begin();              /* a block begins */
/* Exchange the state of shared memory and of asynchronous copies with that of this block of a
 * cooperative launch. */
void block_memory_exchange(unsigned block);
void forget_writes();                   /* kernels have ended: what they wrote can be read */
void keep_writes();                     /* the next kernel is a dependent of the last one */
void check_waited(int lane, const char *what);          /* a fault if the lane has not waited */
void check_shared(const warp &w, int lane, size_t at, size_t n, enum access a);
/* Bytes of shared memory that copies fill: reads before they have ended are errors. */
void shared_under_way(size_t at, size_t n);
void shared_arrived(size_t at, size_t n);
uint8_t *global_pointer(const op &o, int lane, uint64_t p, size_t n, enum access a);

/* ---- blocks.cc: the order of accesses to global memory by blocks that run together ---- */

void order_begin();                     /* a cooperative launch begins */
/* Note an access; a fault if no atomics and fences order it after one of another block. */
void order_access(int lane, uint64_t p, size_t n, enum access a);
enum { ACQUIRE = 1, RELEASE = 2 };
/* After order_access(): an atomic operation or a poll; a relaxed store. */
void order_synchronize(uint64_t p, enum access a, unsigned semantics);
void order_store(uint64_t p);
void order_fence();

/* hopper.cc */
void hopper_begin();
/* called when no warp can run: completes one of the copies in flight */
bool hopper_go_on();
void hopper_end();

#endif
