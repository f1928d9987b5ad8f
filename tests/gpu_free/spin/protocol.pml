/* protocol.pml: who writes when into whose memory. NUM_RANKS ranks make the same sending calls, which
 * program.h lists; each receives when it likes, as far as its session lets it: dispatches in any order,
 * combines in the order in which they were sent.
 *
 * Memory holds the generation that was last written there. Asserted is that a reader finds the generation
 * that it was promised, that results stay until their owner gives them up, that nobody writes after a later
 * generation and, by Spin itself, that nobody waits for good.
 *
 * A store to a peer and the word that tells of it are one step; so are a wait and the reads after it. Words
 * only grow, so whatever can go wrong in between can also go wrong at once. */
#include "program.h"

#ifndef DEFER
#define DEFER 0 /* 1: sends on before the last dispatch was received */
#endif
#ifndef LATE
#define LATE 0 /* 1: sends on before the last combine was finished */
#endif
#ifndef COUNTS_SLOTS
#define COUNTS_SLOTS 2
#endif
#ifndef COMBINED_WORDS
#define COMBINED_WORDS 2
#endif
#ifndef COUNTS_LESS
#define COUNTS_LESS 0 /* 1: an older epoch is taken for the awaited one */
#endif
#ifndef ROWS_LESS
#define ROWS_LESS 0
#endif
#ifndef COMBINED_LESS
#define COMBINED_LESS 0
#endif
#ifndef CONSUMED
#define CONSUMED finished /* sent_combines: told before it is read */
#endif
#ifndef TELLS
#define TELLS 1 /* 0: consumed is told with dispatches only */
#endif
#ifndef SLOTS_DIFFER
#define SLOTS_DIFFER 0 /* 1: ranks choose different slots, and nobody compares */
#endif

/* Place of what `src` wrote in the memory of `dst`. */
#define AT(dst, src) ((dst) * NUM_RANKS + (src))
#define IN(dst, src, slot) (AT(dst, src) * 2 + (slot))

#if NUM_RANKS == 2
#define ALL(f, a, b, c, d) (f(0, a, b, c, d) && f(1, a, b, c, d))
#else
#define ALL(f, a, b, c, d) (f(0, a, b, c, d) && f(1, a, b, c, d) && f(2, a, b, c, d))
#endif
#define REACHED_(src, word, dst, n, unused) (src == dst || word[AT(dst, src)] >= (n))
#define REACHED_IN_(src, word, dst, k, n) (src == dst || word[IN(dst, src, k)] >= (n))
#define EQUAL_(src, memory, dst, slot, n) (memory[IN(dst, src, slot)] == (n))
#define NOT_LATER_(src, memory, dst, slot, n) (memory[IN(dst, src, slot)] <= (n))

#define reached(word, n) ALL(REACHED_, word, me, n, 0)
#define reached_in(word, k, n) ALL(REACHED_IN_, word, me, k, n)
#define holds(memory, dst, slot, n) ALL(EQUAL_, memory, dst, slot, n)
#define not_later(memory, dst, slot, n) ALL(NOT_LATER_, memory, dst, slot, n)

#define PER_PEER (NUM_RANKS * NUM_RANKS)
byte counts_word[PER_PEER], rows_word[PER_PEER], consumed_word[PER_PEER];
byte combined_word[2 * PER_PEER], combined_value[2 * PER_PEER];
byte counts[2 * PER_PEER], recv[2 * PER_PEER], combine[2 * PER_PEER];

#define IS_PENDING(e) (e > 0 && !(received >> e & 1))
#define MAY_SEND(i) ((received >> NEEDS_RECEIVED(i) & 1) && finished >= NEEDS_FINISHED(i) \
                     && (DEFER || ALL_RECEIVED) && (LATE || finished == sent_combines))
#define ALL_RECEIVED (!IS_PENDING(sent[0]) && !IS_PENDING(sent[1]))
#define ALL_DONE (i == NUM_CALLS && finished == sent_combines && ALL_RECEIVED)

/* peer = 1, 2, .. after me; the body is one step each. */
#define FOR_EACH_PEER(body) \
  do \
  :: atomic { step < NUM_RANKS -> peer = (me + step) % NUM_RANKS; body; step++; peer = 0 } \
  :: atomic { step == NUM_RANKS -> step = 1; break } \
  od

#define RECV_OF(e) ((RECV_SLOT(e) + SLOTS_DIFFER * me) % 2)
#define COUNTS_SLOT(e) ((e) % COUNTS_SLOTS)
#define ANNOUNCE \
  counts[IN(peer, me, COUNTS_SLOT(EPOCH(i)))] = EPOCH(i); \
  consumed_word[AT(peer, me)] = CONSUMED; \
  counts_word[AT(peer, me)] = EPOCH(i)
#define SEND_ROWS \
  assert(not_later(recv, peer, RECV_OF(EPOCH(i)), EPOCH(i))); \
  recv[IN(peer, me, RECV_OF(EPOCH(i)))] = EPOCH(i); \
  rows_word[AT(peer, me)] = EPOCH(i)

inline dispatch_send() {
  atomic {
    assert(NEEDS_RECEIVED(i) == 0 || holds(recv, me, RECV_OF(NEEDS_RECEIVED(i)), NEEDS_RECEIVED(i)));
    counts[IN(me, me, COUNTS_SLOT(EPOCH(i)))] = EPOCH(i)
  }
  FOR_EACH_PEER(ANNOUNCE);
  atomic {
    reached(counts_word, EPOCH(i) - COUNTS_LESS);
    assert(holds(counts, me, COUNTS_SLOT(EPOCH(i)), EPOCH(i)));
    told = CONSUMED;
    assert(not_later(recv, me, RECV_OF(EPOCH(i)), EPOCH(i)));
    recv[IN(me, me, RECV_OF(EPOCH(i)))] = EPOCH(i)
  }
  FOR_EACH_PEER(SEND_ROWS);
  sent[KEPT_AT(i)] = EPOCH(i)
}

inline dispatch_receive(e) {
  atomic {
    reached(rows_word, e - ROWS_LESS);
    assert(holds(recv, me, RECV_OF(e), e));
    received = received | (1 << e)
  }
}

#define TELL consumed_word[AT(peer, me)] = CONSUMED
#define PUSH_AND_TELL \
  if \
  :: !PULLED(EPOCH(i)) -> \
     assert(not_later(combine, peer, SLOT(i), EPOCH(i))); \
     combine[IN(peer, me, SLOT(i))] = EPOCH(i) \
  :: else \
  fi; \
  combined_value[IN(peer, me, EPOCH(i) % COMBINED_WORDS)] = VALUE(EPOCH(i)); \
  combined_word[IN(peer, me, EPOCH(i) % COMBINED_WORDS)] = EPOCH(i)

inline write_outputs() { /* into the slot that peers will read */
  for (step : 0 .. NUM_RANKS - 1) { combine[IN(me, step, SLOT(i))] = EPOCH(i) }
  step = 1
}

inline read_outputs(c) {
  for (step : 0 .. NUM_RANKS - 1) { assert(holds(combine, step, COMBINE_SLOT(c), c)) }
  step = 1
}

inline combine_send() {
  if
  :: TELLS && told != CONSUMED -> FOR_EACH_PEER(TELL); told = CONSUMED
  :: else
  fi;
  atomic {
    reached(consumed_word, CREDIT(i));
    assert(holds(recv, me, RECV_OF(ROUND(EPOCH(i))), ROUND(EPOCH(i)))); /* labels say where to */
    assert(not_later(combine, me, SLOT(i), EPOCH(i)));
    if
    :: PULLED(EPOCH(i)) -> write_outputs()
    :: else -> combine[IN(me, me, SLOT(i))] = EPOCH(i)
    fi
  }
  FOR_EACH_PEER(PUSH_AND_TELL);
  sent_combines = EPOCH(i)
}

#define SAME_VALUE_(src, dst, k, n, unused) (src == dst || combined_value[IN(dst, src, k)] == (n))

inline combine_receive(c) {
  atomic {
    reached_in(combined_word, (c) % COMBINED_WORDS, c - COMBINED_LESS);
    assert(ALL(SAME_VALUE_, me, (c) % COMBINED_WORDS, VALUE(c), 0));
    if
    :: PULLED(c) -> read_outputs(c)
    :: else -> assert(holds(combine, me, COMBINE_SLOT(c), c))
    fi;
    finished = c
  }
}

proctype rank(byte me) {
  byte i, peer, told, finished, sent_combines;
  byte sent[2]; /* the session's view: the last dispatch of each slot */
  byte step = 1;
  byte received = 1; /* a set of dispatches; 0 is none */
  do
  :: i < NUM_CALLS && MAY_SEND(i) ->
     if
     :: IS_COMBINE(i) -> combine_send()
     :: else -> dispatch_send()
     fi;
     i++
  :: IS_PENDING(sent[0]) -> dispatch_receive(sent[0])
  :: IS_PENDING(sent[1]) -> dispatch_receive(sent[1])
  :: finished < sent_combines -> combine_receive(finished + 1)
  :: ALL_DONE -> break
  od
}

init {
  byte r;
  atomic { for (r : 0 .. NUM_RANKS - 1) { run rank(r) } }
}
