#!/bin/sh
# First process of a lab machine: this machine's files below, a tmpfs above, cgroup v2 alone; then the job.
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
while read module; do insmod /modules/$module; done < /modules/order
mkdir -p /host /above /root
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /host
mount -t tmpfs -o size=1G above /above
mkdir /above/upper /above/work
mount -t overlay -o lowerdir=/host,upperdir=/above/upper,workdir=/above/work lab /root
for dir in proc sys dev run tmp var/tmp; do mkdir -p /root/$dir; done
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t devtmpfs dev /root/dev
for dir in run tmp var/tmp; do mount -t tmpfs tmp /root/$dir; done
mkdir -p /root/dev/pts /root/dev/shm /root/run/job
mount -t devpts pts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t cgroup2 cgroup /root/sys/fs/cgroup
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 job /root/run/job
ip link set lo up
stty -F /dev/ttyS1 raw
umount /proc /sys 2>/dev/null
exec switch_root /root /bin/sh /run/job/run.sh
