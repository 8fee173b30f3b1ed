# The smallest guest that behaves: one boot sector for q35 and pc, about no CPU. On every tick of the timer it
#  - powers off when the power button was pressed (q35: ACPI PM registers at 0x600, as SeaBIOS sets them),
#  - lets go of every PCI device that the host asks back (ACPI hotplug registers at 0x0cc0 on q35, 0xae00 on pc).
# It says U on the first serial port when it is up, E for each device it let go, and D when it powers off.
# Assembled with -DDEAF it does not see the power button. With -DBUSY it changes each page from 1 to 24 MiB on every tick, so that a
# live migration has something to copy, and copies its sector to the next one of the disk when it has done so for the first time.
        .code16
        .globl  _start
        .equ    SERIAL, 0x3f8
        .equ    PM_STATUS, 0x600        # bit 8: the power button
        .equ    PM_ENABLE, 0x602        # without it the status does not show it
        .equ    PM_CONTROL, 0x604       # bit 13: sleep now; type 0 is off
        .equ    BUSES, 32
        .equ    FILLED, 0x100000        # from here
        .equ    BYTES, 23 << 20

_start: ljmp    $0, $begin
begin:  xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %ss
        movw    $0x7c00, %sp
        movb    $'U', %al
        call    say
#ifndef DEAF
        movw    $PM_ENABLE, %dx
        movw    $0x100, %ax
        outw    %ax, %dx
#endif
#ifdef BUSY
        call    fill
        movw    $0x0301, %ax            # write one sector: from %es:%bx to the second of the first disk
        movw    $0x7c00, %bx
        movw    $2, %cx
        movw    $0x80, %dx
        int     $0x13
#endif
tick:   sti
        hlt
#ifdef BUSY
        call    fill
#endif
#ifndef DEAF
        movw    $PM_STATUS, %dx
        inw     %dx, %ax
        testw   $0x100, %ax
        jnz     off
#endif
        movw    $0x0cc0, %bx
        call    eject
        movw    $0xae00, %bx
        call    eject
        jmp     tick

off:    movb    $'D', %al
        call    say
        movw    $PM_CONTROL, %dx
        movw    $0x2000, %ax
        outw    %ax, %dx
        jmp     tick

# %bx: the registers. For each bus: choose it (+16), read what should go (+4), let it go (+8).
eject:  xorl    %ecx, %ecx
bus:    movl    %ecx, %eax
        leaw    16(%bx), %dx
        outl    %eax, %dx
        leaw    4(%bx), %dx
        inl     %dx, %eax
        cmpl    $-1, %eax               # nobody is there: the other kind of machine
        je      done
        testl   %eax, %eax
        jz      next
        leaw    8(%bx), %dx
        outl    %eax, %dx
        movb    $'E', %al
        call    say
next:   incw    %cx
        cmpw    $BUSES, %cx
        jb      bus
done:   ret

#ifdef BUSY
fill:   cli                             # %es gets a limit of 4 GiB in protected mode and keeps it in real mode
        lgdt    table
        movl    %cr0, %eax
        orb     $1, %al
        movl    %eax, %cr0
        movw    $8, %bx
        movw    %bx, %es
        andb    $0xfe, %al
        movl    %eax, %cr0
        xorw    %bx, %bx
        movw    %bx, %es
        movl    $FILLED, %edi
page:   incl    %es:(%edi)
        addl    $4096, %edi
        cmpl    $FILLED + BYTES, %edi
        jb      page
        sti
        ret

table:  .word   segments_end - segments - 1
        .long   segments
segments: .quad 0, 0x00cf93000000ffff
segments_end:
#endif

say:    movw    $SERIAL, %dx
        outb    %al, %dx
        movb    $'\n', %al
        outb    %al, %dx
        ret

        .org    510
        .word   0xaa55
