// memory.cuh: single PTX accesses. Everything that has an order or a scope is here.
#pragma once

#include "core/layout.hpp"

DEEP_LL_TIER_BEGIN

// Asynchronous bulk copies, mbarriers: Hopper and later.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kHasBulk = true;
#else
constexpr bool kHasBulk = false;
#endif

struct alignas(16) Vec16 {
    std::uint32_t w[4];
};

// Memory that nobody writes while the kernel runs, read once.
TEAM_FN Vec16 load_constant16(const void* from) {
    Vec16 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(from));
    return v;
}
// Memory that peers wrote, after it was waited for.
TEAM_FN Vec16 load16(const void* from) {
    Vec16 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(from)
                 : "memory");
    return v;
}
TEAM_FN uint2 load8(const void* from) {
    uint2 v;
    asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    return v;
}
TEAM_FN std::uint32_t load2(const void* from) {
    std::uint16_t v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(from) : "memory");
    return v;
}
TEAM_FN void store16(void* to, const Vec16& v) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.w[0]), "r"(v.w[1]),
                 "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
}

TEAM_FN std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

TEAM_FN void bar_sync(int barrier, int num_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}

// Words of other ranks: system scope.
TEAM_FN std::uint64_t load_relaxed_sys(const std::uint64_t* word) {
    std::uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(word) : "memory");
    return v;
}
TEAM_FN std::uint64_t load_acquire_sys(const std::uint64_t* word) {
    std::uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(word) : "memory");
    return v;
}
TEAM_FN void fence_release_sys() {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}
TEAM_FN void store_relaxed_sys(std::uint64_t* word, std::uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
TEAM_FN void store_release_sys(std::uint64_t* word, std::uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
TEAM_FN void store_release_sys(std::uint32_t* word, std::uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// Words between blocks of one rank: one GPU.
TEAM_FN std::uint32_t load_relaxed_gpu(const std::uint32_t* word) {
    std::uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(word) : "memory");
    return v;
}
TEAM_FN std::uint32_t load_acquire_gpu(const std::uint32_t* word) {
    std::uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(word) : "memory");
    return v;
}
TEAM_FN void store_release_gpu(std::uint32_t* word, std::uint32_t value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
TEAM_FN std::uint32_t add_release_gpu(std::uint32_t* word, std::uint32_t value) {
    std::uint32_t before;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(word), "r"(value)
                 : "memory");
    return before;
}

TEAM_FN void or_release_gpu(std::uint32_t* word, std::uint32_t bits) {
    asm volatile("red.or.release.gpu.global.b32 [%0], %1;" ::"l"(word), "r"(bits) : "memory");
}
// What it was; 0 from now on.
TEAM_FN std::uint32_t take_acquire_gpu(std::uint32_t* word) {
    std::uint32_t before;
    asm volatile("atom.exch.acquire.gpu.global.b32 %0, [%1], 0;" : "=r"(before) : "l"(word) : "memory");
    return before;
}

TEAM_FN std::uint64_t now_ns() {
    std::uint64_t v;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
    return v;
}

// A lane's bulk copies. What is written to shared memory by ordinary stores must be sealed before the copy
// engine reads it.
TEAM_FN void seal_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
TEAM_FN void bulk_store(void* to, const void* from_shared, std::uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from_shared)), "r"(bytes)
                 : "memory");
}
TEAM_FN void bulk_load(void* to_shared, const void* from, std::uint32_t bytes, std::uint64_t* arrived) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrived)),
                 "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to_shared)),
        "l"(from), "r"(bytes), "r"(shared_address(arrived))
        : "memory");
}
TEAM_FN void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// All but the last kPending groups have been read; their sources may be written again.
template <int kPending>
TEAM_FN void bulk_await_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// All groups have been written.
TEAM_FN void bulk_await_all() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
TEAM_FN void mbarrier_init(std::uint64_t* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
TEAM_FN void mbarrier_await(std::uint64_t* barrier, std::uint32_t parity) {
    std::uint32_t done = 0;
    while (done == 0)
        asm volatile(
            "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, "
            "p;\n}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
}

// What is under way of one lane's bulk copies.
struct BulkState {
    // Loads that were asked for and not yet passed on.
    std::byte *newer_to, *older_to;
    std::uint32_t newer_bytes, older_bytes;
    std::uint32_t loads;  // so far
    std::uint32_t half;   // of the ring that is written next
};

DEEP_LL_TIER_END
