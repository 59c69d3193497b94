// Runs a kernel in CUDA C++ on a CPU: its threads as coroutines, its instructions as the functions below.
//
// Copies that are asynchronous are done as late as a wait allows, or earlier, by chance; so are the turns of
// threads. Products of warpgroups read x as late as a wait allows. A kernel that reads too early, or overwrites what is
// still read, gives wrong results, and one that waits for what never comes is stopped. A program runs until it ends or
// waits for another one. An address that the device would refuse as not aligned stops the process.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
using std::max;
using std::min;

struct __align__(8) int2 { int x, y; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct Dim { int x; };
static Dim threadIdx, blockIdx, gridDim;
char memory[256 * 1024] __attribute__((aligned(1024)));

static const size_t STACK = 256 * 1024;
static const long MOST_IDLE = 20000, LEAST_IDLE = 40;  // turns of all threads without any progress
static const long MOST_MISSED = 4096;  // words of other programs that were not there

struct Pending {
  enum { COPY, END, ARRIVAL } kind;
  uint32_t to;
  const void *from;
  bool is;
};
struct Thread {
  ucontext_t context;
  std::deque<Pending> copies;
  bool over;
  // What it waits for: that a collective's turn is not ``seen`` any more, or a barrier's.
  const unsigned *turn = nullptr;
  int barrier = -1;
  unsigned seen;
};
struct Collective {
  int arrived = 0;
  unsigned turn = 0;
  void *of[32];
};
struct Barrier {  // eight bytes of shared memory
  int32_t missing;
  int16_t count, turn;
};
static std::vector<Thread> threads;
static std::vector<Collective> warps;
static Collective named[16], whole;
static ucontext_t scheduler;
static int current;
static long idle, missed;
static uint32_t chance = 1;

// All bits by chance: a thread that asks in a regular way would find the lower ones of the sequence the same again.
static uint32_t draw() {
  chance = chance * 1664525u + 1013904223u;
  const uint32_t mixed = (chance ^ chance >> 16) * 0x85EBCA6Bu;
  return (mixed ^ mixed >> 13) >> 8;
}
static void must_be_aligned(uint64_t at, uint64_t to) {
  if (at % to == 0) return;
  fprintf(stderr, "address %llu is no multiple of %llu\n", (unsigned long long)at, (unsigned long long)to);
  abort();
}
static Barrier &barrier_at(uint32_t at) {
  must_be_aligned(at, 8);
  return *(Barrier *)(memory + at);
}
static std::map<uint32_t, long> expected;  // bytes that a barrier waits for, too
static void complete_at(uint32_t at) {
  Barrier &b = barrier_at(at);
  if (b.missing == 0 && expected[at] == 0) b.missing = b.count, b.turn ^= 1;
}
static void arrive_at(uint32_t at) {
  idle = 0;
  barrier_at(at).missing--;
  complete_at(at);
}
// Copies of many bytes, which no thread does.
struct Bulk {
  uint32_t barrier;
  std::vector<std::pair<uint32_t, const char *>> pieces;  // of 16 bytes; from nowhere: zeros
};
static std::vector<Bulk> bulks;
static void do_bulk() {
  if (bulks.empty()) return;
  std::swap(bulks[draw() % bulks.size()], bulks.back());
  Bulk bulk = bulks.back();
  bulks.pop_back();
  for (auto &piece : bulk.pieces) {
    if (piece.second) memcpy(memory + piece.first, piece.second, 16);
    else memset(memory + piece.first, 0, 16);
  }
  idle = 0;
  expected[bulk.barrier] -= 16 * (long)bulk.pieces.size();
  complete_at(bulk.barrier);
}
static void do_copy(Thread &t) {
  idle = 0;
  Pending p = t.copies.front();
  t.copies.pop_front();
  if (p.kind == Pending::COPY) {
    if (p.is) memcpy(memory + p.to, p.from, 16);
    else memset(memory + p.to, 0, 16);
  }
  if (p.kind == Pending::ARRIVAL) arrive_at(p.to);
}
static void copies_go_on(Thread &t) {
  if (!t.copies.empty() && draw() % 64 == 0) do_copy(t);
  if (draw() % 512 == 0) do_bulk();
}
static void yield() {
  Thread &t = threads[current];
  copies_go_on(t);
  swapcontext(&t.context, &scheduler);
}
static bool waits(const Thread &t) {
  return (t.turn && *t.turn == t.seen) || (t.barrier >= 0 && (unsigned)barrier_at(t.barrier).turn == t.seen);
}
static void copies_may_end() {
  Thread &t = threads[current];
  if (draw() % 32 == 0)
    while (!t.copies.empty()) do_copy(t);
}
template <typename Body> static void together(Collective &c, int count, void *mine, int lane, Body body) {
  idle = 0;
  unsigned turn = c.turn;
  if (mine) c.of[lane] = mine;
  if (++c.arrived == count) {
    body(c);
    c.arrived = 0, c.turn++;
    return;
  }
  Thread &t = threads[current];
  t.turn = &c.turn, t.seen = turn;
  while (waits(t)) yield();
  t.turn = nullptr;
}
static Collective &own_warp() { return warps[threadIdx.x / 32]; }
static void __syncwarp() { together(own_warp(), 32, nullptr, 0, [](Collective &) {}); }
static void __syncthreads() { together(whole, (int)threads.size(), nullptr, 0, [](Collective &) {}); }
template <typename T> static T __shfl_sync(unsigned, T v, int lane) {
  struct Word { T own, from; int lane; } word{v, v, lane};
  together(own_warp(), 32, &word, threadIdx.x % 32, [](Collective &warp) {
    for (void *lane : warp.of) ((Word *)lane)->from = ((Word *)warp.of[((Word *)lane)->lane % 32])->own;
  });
  return word.from;
}
template <typename T> static T __ldcg(const T *p) { return *p; }
static uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t s) {
  uint64_t both = (uint64_t)b << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; i++) r |= (uint32_t)(both >> (8 * (s >> (4 * i) & 7)) & 255) << (8 * i);
  return r;
}
static uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t c) {
  for (int i = 0; i < 4; i++) c += (uint8_t)(a >> (8 * i)) * (uint8_t)(b >> (8 * i));
  return c;
}
static uint32_t __float_as_uint(float v) { uint32_t r; return memcpy(&r, &v, 4), r; }
static float __uint_as_float(uint32_t v) { float r; return memcpy(&r, &v, 4), r; }

typedef uint32_t u32;
#define DEVICE static inline

DEVICE u32 shared_address(const void *p) { return (u32)((const char *)p - memory); }
DEVICE void copy16_or_zero(u32 to, const void *from, bool there) {
  must_be_aligned(to, 16), must_be_aligned((uint64_t)from, there ? 16 : 1);
  threads[current].copies.push_back({Pending::COPY, to, from, there});
  copies_may_end();
}
DEVICE void copy16_or_zero(u32 to, const void *from, bool there, uint64_t) { copy16_or_zero(to, from, there); }
template <int OFFSET> DEVICE void copy16_from(u32 to, const void *from, uint64_t) { copy16_or_zero(to, (const char *)from + OFFSET, true); }
DEVICE void copy16(u32 to, const void *from) { copy16_or_zero(to, from, true); }
DEVICE u32 own_address(u32 at) { return at; }
DEVICE void end_of_copies() { threads[current].copies.push_back({Pending::END, 0, nullptr, false}); }
template <int LEFT> DEVICE void wait_for_copies() {
  Thread &t = threads[current];
  auto ends = [&]() { return std::count_if(t.copies.begin(), t.copies.end(), [](const Pending &p) { return p.kind == Pending::END; }); };
  while (ends() > LEFT) do_copy(t);
}
template <typename T> static T at_shared(u32 at) {
  must_be_aligned(at, sizeof(T));
  T v;
  return memcpy(&v, memory + at, sizeof(T)), v;
}
DEVICE uint4 load16(u32 at) { return at_shared<uint4>(at); }
DEVICE float2 load_two(u32 at) { return at_shared<float2>(at); }
DEVICE uint2 load8(u32 at) { return at_shared<uint2>(at); }
DEVICE void barrier_init(u32 at, u32 arrivals) { barrier_at(at) = {(int32_t)arrivals, (int16_t)arrivals, 0}; }
DEVICE void barrier_arrive(u32 at) { arrive_at(at); }
DEVICE void barrier_wait(u32 at, u32 parity) {
  Thread &t = threads[current];
  t.barrier = (int)at, t.seen = parity;
  while (waits(t)) yield();
  t.barrier = -1;
}
DEVICE void arrive_with_copies(u32 barrier) { threads[current].copies.push_back({Pending::ARRIVAL, barrier, nullptr, false}); }
template <int COUNT> DEVICE void take_registers() {}
template <int COUNT> DEVICE void give_registers() {}
template <int THREADS> DEVICE void wait_together(int barrier) { together(named[barrier], THREADS, nullptr, 0, [](Collective &) {}); }
DEVICE void column_warps_wait(int barrier) { wait_together<32 * COLUMN_WARPS>(barrier); }
DEVICE uint4 load_of_others(const u32 *at) {
  yield();
  for (int i = 0; i < 4; i++) missed += at[i] == ~0u;
  return *(const uint4 *)at;
}
DEVICE void store_for_others(u32 *at, const uint4 &v) { *(uint4 *)at = v; }
DEVICE int count_up(int *counter) { return (*counter)++; }
DEVICE void wait_for_producers() {}
DEVICE void start_dependents() {}

struct Fragments {
  void *d;
  u32 a[4], b[2];
};
static int byte_of(u32 word, int k, bool is_unsigned) { return is_unsigned ? (int)(word >> (8 * k) & 255) : (int8_t)(word >> (8 * k)); }
static float bf16_of(u32 word, int k) { return __uint_as_float(k ? word & 0xFFFF0000u : word << 16); }

// D += A B, 16 x 8, of all lanes: a lane 4 g + c has ``each`` columns of rows g and g + 8 in each word of a.
template <typename T, typename Product> static void multiply_warp(T *d, const u32 *a, int words, u32 b0, u32 b1, Product product) {
  const int lane = threadIdx.x % 32;
  Fragments mine{d, {a[0], a[1], words > 2 ? a[2] : 0, words > 2 ? a[3] : 0}, {b0, b1}};
  together(own_warp(), 32, &mine, lane, [&](Collective &warp) {
    auto of = [&](int lane) { return (Fragments *)warp.of[lane]; };
    for (int row = 0; row < 16; row++)
      for (int column = 0; column < 8; column++) {
        T sum = 0;
        for (int k = 0; k < 4; k++) {
          const Fragments *left = of(row % 8 * 4 + k), *right = of(column * 4 + k);
          for (int part = 0; part < words / 2; part++) sum += product(left->a[2 * part + row / 8], right->b[part]);
        }
        ((T *)of(row % 8 * 4 + column / 2)->d)[row / 8 * 2 + column % 2] += sum;
      }
  });
}
template <bool UNSIGNED> DEVICE void multiply_bytes(int *d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  const u32 a[4] = {a0, a1, a2, a3};
  multiply_warp(d, a, 4, b0, b1, [](u32 a, u32 b) {
    int sum = 0;
    for (int k = 0; k < 4; k++) sum += byte_of(a, k, UNSIGNED) * byte_of(b, k, false);
    return sum;
  });
}
DEVICE void multiply_half(int *d, u32 a0, u32 a1, u32 b0) {
  const u32 a[4] = {a0, a1};
  multiply_warp(d, a, 2, b0, 0, [](u32 a, u32 b) {
    int sum = 0;
    for (int k = 0; k < 4; k++) sum += byte_of(a, k, false) * byte_of(b, k, false);
    return sum;
  });
}
DEVICE void multiply_bf16(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  const u32 a[4] = {a0, a1, a2, a3};
  multiply_warp(d, a, 4, b0, b1, [](u32 a, u32 b) { return bf16_of(a, 0) * bf16_of(b, 0) + bf16_of(a, 1) * bf16_of(b, 1); });
}
static u32 to_bf16(float v) {
  u32 bits = __float_as_uint(v);
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
#if Y_TYPE == 0
typedef float Y;
DEVICE Y as_y(float v) { return v; }
#elif Y_TYPE == 1
typedef uint16_t Y;
DEVICE Y as_y(float v) { return (Y)to_bf16(v); }
#else
typedef uint16_t Y;
static u32 to_half(double v);
DEVICE Y as_y(float v) { return (Y)to_half(v); }
#endif
DEVICE u32 minus_upper_bytes(u32 word) {
  return to_bf16(-(float)(word >> 16 & 255)) | to_bf16(-(float)(word >> 24)) << 16;
}
DEVICE float float_of_half(u32 bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float size = exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp((float)fraction, -24);
  return bits & 0x8000 ? -size : size;
}
template <int BYTE> DEVICE int signed_byte(u32 word) { return (int8_t)(word >> (8 * BYTE)); }

static u32 to_half(double v) {  // rounded once
  if (v == 0 || std::isnan(v)) return v == 0 ? (std::signbit(v) ? 0x8000 : 0) : 0x7E00;
  const u32 sign = v < 0 ? 0x8000 : 0;
  v = std::fabs(v);
  const int exponent = std::max(std::ilogb(v), -14);
  const double units = std::nearbyint(std::ldexp(v, 10 - exponent));  // to even
  const u32 bits = units < 1024 ? (u32)units : ((u32)(exponent + 14) << 10) + (u32)units;
  return sign | std::min(bits, 0x7C00u);
}
DEVICE u32 halves_of(float low, float high) {
  auto half = [](float v) { return to_half(std::max(-65504.0f, std::min(v, 65504.0f))); };
  return half(low) | half(high) << 16;
}
template <typename Number> static u32 of_pairs(u32 a, u32 b, u32 c, Number number) {
  auto part = [&](int by) { return to_half(number((double)float_of_half(a >> by & 0xFFFF), (double)float_of_half(b >> by & 0xFFFF), (double)float_of_half(c >> by & 0xFFFF))); };
  return part(0) | part(16) << 16;
}
DEVICE u32 sub_pairs(u32 a, u32 b) { return of_pairs(a, b, 0, [](double a, double b, double) { return a - b; }); }
DEVICE u32 mul_pairs(u32 a, u32 b) { return of_pairs(a, b, 0, [](double a, double b, double) { return a * b; }); }
DEVICE u32 fma_pairs(u32 a, u32 b, u32 c) { return of_pairs(a, b, c, [](double a, double b, double c) { return a * b + c; }); }
DEVICE u32 low_twice(u32 a) { return __byte_perm(a, a, 0x1010); }
DEVICE u32 high_twice(u32 a) { return __byte_perm(a, a, 0x3232); }
DEVICE void multiply(float *sums, const u32 *a, u32 b0, u32 b1) {
  multiply_warp(sums, a, 4, b0, b1, [](u32 a, u32 b) {
    return float_of_half(a & 0xFFFF) * float_of_half(b & 0xFFFF) + float_of_half(a >> 16) * float_of_half(b >> 16);
  });
}

// Products of a warpgroup: what its 128 lanes have asked for, in groups.
struct Product {
  float (*d[128])[4];
  u32 a[128][4];  // as it was: the assembler keeps registers of products that are under way
  uint64_t x;
  int tiles, group;
};
struct Warpgroup {
  Collective together;
  Product asked;
  std::deque<Product> products;
  int group = 0;  // groups that have ended
};
static std::vector<Warpgroup> warpgroups;
static Warpgroup &own_warpgroup() { return warpgroups[threadIdx.x / 128]; }
template <typename Body> static void of_warpgroup(Warpgroup &w, Body body) {
  together(w.together, 128, nullptr, 0, [&](Collective &) { body(); });
}
DEVICE void begin_products() {}
DEVICE void end_of_products() {
  Warpgroup &w = own_warpgroup();
  of_warpgroup(w, [&]() { w.group++; });
}
static void compute(const Product &p) {
  const u32 x = (u32)(p.x & 0x3FFF) << 4, across = (u32)(p.x >> 16 & 0x3FFF) << 4, down = (u32)(p.x >> 32 & 0x3FFF) << 4;
  const bool in_rows = p.x >> 62;
  auto place = [&](int n, int k) {
    if (!in_rows) return x + n / 8 * down + k / 8 * across + n % 8 * 16 + k % 8 * 2;
    const u32 at = x + n / 8 * down + n % 8 * 128 + k * 2;
    return at ^ (at >> 7 & 7) << 4;
  };
  float rows[64][16], column[16];
  for (int m = 0; m < 64; m++)
    for (int k = 0; k < 16; k++)
      rows[m][k] = float_of_half(p.a[m / 16 * 32 + m % 8 * 4 + k % 8 / 2][m / 8 % 2 + k / 8 * 2] >> k % 2 * 16 & 0xFFFF);
  for (int n = 0; n < 8 * p.tiles; n++) {
    for (int k = 0; k < 16; k++)
      column[k] = float_of_half(*(uint16_t *)(memory + place(n, k)));
    for (int m = 0; m < 64; m++) {
      float sum = 0;
      for (int k = 0; k < 16; k++) sum += rows[m][k] * column[k];
      p.d[m / 16 * 32 + m % 8 * 4 + n % 8 / 2][n / 8][m / 8 % 2 * 2 + n % 2] += sum;
    }
  }
}
template <int LEFT> DEVICE void wait_for_products() {
  Warpgroup &w = own_warpgroup();
  const int ended = w.group - LEFT;  // the lane has begun as many groups as any
  while (!w.products.empty() && w.products.front().group < ended) compute(w.products.front()), w.products.pop_front();
}
template <int X_TILES> DEVICE void pin_sums(float (*)[4]) {}
DEVICE void copies_are_known() {}
DEVICE uint64_t describe(u32 at) { return (at & 0x3FFFF) >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(512 >> 4) << 32; }
DEVICE uint64_t describe_rows(u32 at) { return (at & 0x3FFFF) >> 4 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62; }
template <int X_TILES> DEVICE void multiply_warpgroup(float (*d)[4], const u32 *a, uint64_t x) {
  Warpgroup &w = own_warpgroup();
  w.asked.d[threadIdx.x % 128] = d;
  std::copy(a, a + 4, w.asked.a[threadIdx.x % 128]);
  of_warpgroup(w, [&]() {
    w.asked.x = x, w.asked.tiles = X_TILES, w.asked.group = w.group;
    w.products.push_back(w.asked);
  });
}
static bool __any_sync(unsigned, bool v) {
  struct Vote { bool own, any; } vote{v, v};
  together(own_warp(), 32, &vote, threadIdx.x % 32, [](Collective &warp) {
    bool any = false;
    for (void *lane : warp.of) any |= ((Vote *)lane)->own;
    for (void *lane : warp.of) ((Vote *)lane)->any = any;
  });
  return vote.any;
}
static unsigned __ballot_sync(unsigned, bool v) {
  struct Vote { bool own; unsigned all; } vote{v, 0};
  together(own_warp(), 32, &vote, threadIdx.x % 32, [](Collective &warp) {
    unsigned all = 0;
    for (int i = 0; i < 32; i++) all |= (unsigned)((Vote *)warp.of[i])->own << i;
    for (void *lane : warp.of) ((Vote *)lane)->all = all;
  });
  return vote.all;
}
static int __popc(unsigned v) { return __builtin_popcount(v); }
static bool __all_sync(unsigned lanes, bool v) { return !__any_sync(lanes, !v); }
DEVICE u32 kept(u32 v) { return v; }
DEVICE bool elected() { return threadIdx.x % 32 == 0; }
DEVICE void barriers_are_set() {}
DEVICE void barrier_expect(u32 at, u32 bytes) { expected[at] += bytes, arrive_at(at); }
DEVICE void bulk_copy(u32 to, const void *from, u32 bytes, u32 barrier) {
  must_be_aligned(to, 16), must_be_aligned((uint64_t)from, 16), must_be_aligned(bytes, 16);
  Bulk bulk{barrier};
  for (u32 i = 0; i < bytes; i += 16) bulk.pieces.push_back({to + i, (const char *)from + i});
  bulks.push_back(bulk);
}

// As tensor_map.Description describes it.
struct __align__(64) TensorMap {
  uint64_t address, sizes[3], strides[3];
  uint32_t box[3], dimensions, swizzled, unused[12];
};
static void copy_box(u32 to, const TensorMap &from, const int *at, u32 barrier) {
  const u32 rows = from.dimensions > 1 ? from.box[1] : 1, blocks = from.dimensions > 2 ? from.box[2] : 1;
  must_be_aligned(to, from.swizzled ? 1024 : 128), must_be_aligned(from.address, 16);
  for (u32 i = 0; i + 1 < from.dimensions; i++) must_be_aligned(from.strides[i], 16);
  Bulk bulk{barrier};
  u32 place = to;
  for (u32 block = 0; block < blocks; block++)
    for (u32 row = 0; row < rows; row++)
      for (u32 word = 0; word < from.box[0]; word += 4, place += 16) {
        const uint64_t i = at[0] + word, j = at[1] + row, k = from.dimensions > 2 ? at[2] + block : 0;
        const bool is = i < from.sizes[0] && j < from.sizes[1] && (from.dimensions < 3 || k < from.sizes[2]);
        const char *source = (const char *)from.address + 4 * i + from.strides[0] * j + from.strides[1] * k;
        bulk.pieces.push_back({from.swizzled ? place ^ (place >> 7 & 7) << 4 : place, is ? source : nullptr});
      }
  bulks.push_back(bulk);
}
DEVICE void copy_rows(u32 to, const TensorMap &from, int column, int row, u32 barrier, uint64_t) {
  const int at[3] = {column, row};
  copy_box(to, from, at, barrier);
}
DEVICE void copy_blocks(u32 to, const TensorMap &from, int row, int block, u32 barrier, uint64_t) {
  const int at[3] = {0, row, block};
  copy_box(to, from, at, barrier);
}

// -- programs -------------------------------------------------------------------------------------------

static void (*body)();
static void begin_thread() {
  body();
  while (!threads[current].copies.empty()) do_copy(threads[current]);
  threads[current].over = true;
  idle = 0;
  swapcontext(&threads[current].context, &scheduler);
}

// A program. The one that runs has its state in the variables above, the others have theirs here.
struct Program {
  int number, slow;  // slow: one warp runs seldom, so others are far ahead of it
  std::vector<char> shared = std::vector<char>(sizeof memory, (char)0xFF);  // not a number, wherever it is read too early
  std::unique_ptr<char[]> stacks;
  std::vector<Thread> of_threads;
  std::vector<Collective> of_warps, of_barriers = std::vector<Collective>(17);
  std::vector<Warpgroup> of_warpgroups;
  std::vector<Bulk> of_bulks;
  std::map<uint32_t, long> of_expected;

  Program(int number, int count) : number(number), stacks(new char[count * STACK]), of_threads(count) {
    of_warps.resize(count / 32), of_warpgroups.resize(count / 128 + 1);
    slow = draw() % (count / 32);
    for (int i = 0; i < count; i++) {
      ucontext_t &c = of_threads[i].context;
      getcontext(&c);
      c.uc_stack.ss_sp = stacks.get() + i * STACK, c.uc_stack.ss_size = STACK, c.uc_link = &scheduler;
      makecontext(&c, begin_thread, 0);
    }
  }
  // Begins or ends to be the one that runs.
  void exchange() {
    blockIdx.x = number;
    std::swap_ranges(shared.begin(), shared.end(), memory);
    std::swap_ranges(named, named + 16, of_barriers.begin()), std::swap(whole, of_barriers[16]);
    threads.swap(of_threads), warps.swap(of_warps), warpgroups.swap(of_warpgroups);
    bulks.swap(of_bulks), expected.swap(of_expected);
  }
  // Takes turns until all threads have ended, nothing has happened for ``patience`` turns, or others must go on.
  void turns(long patience) {
    for (idle = missed = 0; !ended() && idle <= patience && missed <= MOST_MISSED; idle++)
      for (size_t warp = 0; warp < warps.size(); warp++) {
        const bool seldom = (int)warp == slow;
        if (draw() % (seldom ? 16 : 3) > (seldom ? 0 : 1)) continue;
        for (size_t i = 32 * warp; i < 32 * warp + 32; i++) {
          if (threads[i].over) continue;
          if (waits(threads[i])) {  // no need to ask the thread
            copies_go_on(threads[i]);
            continue;
          }
          current = threadIdx.x = i;
          swapcontext(&scheduler, &threads[i].context);
        }
      }
  }
  static bool ended() {
    return std::all_of(threads.begin(), threads.end(), [](const Thread &t) { return t.over; });
  }
};

// Runs programs 0 to grid - 1, each until it ends or waits for others. Returns whether all ended.
static bool run_programs(int grid, int count, void (*kernel)(), uint32_t seed) {
  body = kernel, chance = seed, gridDim.x = grid;
  std::vector<Program *> left;
  for (int i = 0; i < grid; i++) left.push_back(new Program(i, count));
  for (long patience = LEAST_IDLE; !left.empty() && patience <= MOST_IDLE; patience *= 2) {
    for (Program *&program : left) {
      program->exchange();
      program->turns(patience);
      const bool over = Program::ended();
      program->exchange();
      if (over) delete program, program = nullptr, patience = LEAST_IDLE;
    }
    left.erase(std::remove(left.begin(), left.end(), nullptr), left.end());
  }
  return left.empty();
}
