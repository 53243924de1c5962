;; Allocates memory and never frees it; grows the memory if needed.
    (local $place i32) (; first ;)
    (local.set $place (global.get $next))
    (global.set $next (i32.and (i32.add (i32.add (local.get $place) (local.get $size)) (i32.const 7)) (i32.const -8)))
    (block $fits (loop $more
        (br_if $fits (i32.le_u (global.get $next) (i32.mul (memory.size) (i32.const 65536))))
        (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))
        unreachable))
    (local.get $place)
