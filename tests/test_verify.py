"""The math grader: a wrong verdict teaches the model, a hang kills the run, and an answer that was
executed would hand the machine over. So: graded pairs, properties, and what was made to do harm."""

import ast
import json
import random
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from tasks import verify
from tasks.verify import extract_answer, is_correct, is_readable, verdict

SAMPLE = Path(__file__).with_name("grading_cases.jsonl")
SECOND = 1.0  # what a verdict may take at most

# equal or not, kind, gold, answer (in a box, or `raw:` the whole response)
PAIRS = r"""
T integer ¦ 42 ¦ 42
F integer ¦ 42 ¦ 43
T integer ¦ 025 ¦ 25
T integer ¦ 1234567 ¦ 1,234,567
T integer ¦ 123456789012345678901234567890 ¦ 123456789012345678901234567890
F integer ¦ 123456789012345678901234567890 ¦ 123456789012345678901234567891
T integer ¦ 720 ¦ 6!
T integer ¦ 2^{10} ¦ 1024
T integer ¦ \frac{100!}{98!} ¦ 9900
T integer ¦ \binom{10}{3} ¦ 120
F integer ¦ 12 ¦ 21
T integer ¦ 17 ¦ +17
T integer ¦ 12 ¦ \frac{24}{2}
T integer ¦ 3 ¦ \lfloor \pi \rfloor
T integer ¦ -7 ¦ -\lceil 6.5 \rceil
T integer ¦ 101_2 ¦ 5
T integer ¦ 1A_{16} ¦ 26
F integer ¦ 101_2 ¦ 101_3
F polynomial ¦ \pi(R^2-r^2) ¦ \pi(r^2-R^2)
F polynomial ¦ 2x+Y ¦ 2X+y
F polynomial ¦ n(n-1) ¦ (N)(N-1)
F polynomial ¦ (N)(N-1) ¦ (N)(N-2)
T text/choice ¦ (B) ¦ B) 12
F interval ¦ x>0,y<0 ¦ x<0,y>0
F interval ¦ 1<x<2 ¦ 1<y<2
T interval ¦ (1,2) ¦ 1<x<2
T integer ¦ 3000000 ¦ 3 million
F integer ¦ 5 million ¦ 5 billion
F integer ¦ 3 ¦ 3 million
F fraction ¦ 1 ¦ one half
F equation ¦ x=3 ¦ x\not=3
F matrix ¦ \begin{pmatrix}1&2\\3&4\end{pmatrix} ¦ \begin{vmatrix}1&2\\3&4\end{vmatrix}
T integer ¦ 4343_6 ¦ (4343)_6
F integer ¦ 4343_6 ¦ (4343)_7
T tuple ¦ (5,3) ¦ (101_2, 3)
T integer ¦ 676,\!000 ¦ 676~000
F integer ¦ 676,\!000 ¦ 676~001
T matrix ¦ \begin{pmatrix}1\\2\end{pmatrix} ¦ \begin{bmatrix}1 \\[4pt] 2\end{bmatrix}
F matrix ¦ \begin{pmatrix}1\\2\end{pmatrix} ¦ \begin{bmatrix}2 \\[4pt] 1\end{bmatrix}
T integer ¦ 5 ¦ |-5|
F integer ¦ 100 ¦ 1000
F integer ¦ 10 ¦ 10.5
T integer ¦ 23 ¦ \mathbf{23}
T integer ¦ 8 ¦ n = 8
T integer ¦ 8 ¦ 5 + 3 = 8
F integer ¦ 16 ¦ 4^{-2}
T decimal ¦ 0.25 ¦ \frac14
T decimal ¦ 3.0 ¦ 3
T decimal ¦ 1.5 \times 10^3 ¦ 1500
T decimal ¦ 0.1\overline{6} ¦ \frac{1}{6}
T decimal ¦ 0.\overline{142857} ¦ 1/7
F decimal ¦ 0.33 ¦ 0.34
F decimal ¦ 0.5 ¦ 5
F decimal ¦ 3.1416 ¦ 3.1417
T decimal ¦ 2.50 ¦ 2.5
T decimal ¦ -.75 ¦ -\frac{3}{4}
T decimal ¦ 6.02 \cdot 10^{23} ¦ 6.02e23
F decimal ¦ 1.000000001 ¦ 1
T decimal ¦ \sqrt{3} ¦ 1.7320508075688772
F decimal ¦ \sqrt{3} ¦ 1.73
F decimal ¦ \frac{1}{3} ¦ 0.3333333344
T currency/thousands ¦ \$1,250 ¦ 1250
T currency/thousands ¦ \$32,\!348 ¦ 32348 \text{ dollars}
T currency/thousands ¦ 12{,}345 ¦ 12345
T currency/thousands ¦ 25 ¦ \$25.00
T currency/thousands ¦ 2,500,000 ¦ 2.5 \times 10^6
F currency/thousands ¦ 2,500 ¦ 2.5
F currency/thousands ¦ \$18.90 ¦ \$18.09
T currency/thousands ¦ 1500 ¦ €1500
T currency/thousands ¦ 1234.5 ¦ 1,234.50
F currency/thousands ¦ 1,234 ¦ 1,235
T percent ¦ 25\% ¦ 25
T percent ¦ 25\% ¦ 25 \text{ percent}
T percent ¦ 12.5\% ¦ \frac{25}{2}\%
F percent ¦ 25\% ¦ 2.5\%
F percent ¦ 40\% ¦ 60\%
T percent ¦ 33\frac{1}{3}\% ¦ \frac{100}{3} \%
T units ¦ 15 ¦ 15\text{ cm}
T units ¦ 15 \text{ cm} ¦ 15\,\mathrm{cm}
T units ¦ 12 ¦ 12 square units
T units ¦ 12\text{ m}^2 ¦ 12
T units ¦ 3.5 ¦ 3.5 hours
T units ¦ 60 ¦ 60 \text{ miles per hour}
F units ¦ 15\text{ cm} ¦ 16\text{ cm}
T units ¦ 30^\circ ¦ 30
T units ¦ 30^\circ ¦ 30^{\circ}
T units ¦ 30^\circ ¦ 30°
T units ¦ 7 ¦ 7 \text{ days}
T units ¦ \frac{3}{4} ¦ \frac{3}{4} \text{ gallon}
T units ¦ 90 ¦ 90 \text{ degrees}
T units ¦ 5 kg ¦ 5
T units ¦ 12\sqrt{13}\text{ feet} ¦ 12\sqrt{13}
T fraction ¦ 3/4 ¦ \frac{3}{4}
T fraction ¦ 3/4 ¦ \frac{6}{8}
F fraction ¦ 3/4 ¦ 4/3
T fraction ¦ -\frac{2}{3} ¦ \frac{2}{-3}
T fraction ¦ \frac{1}{2} ¦ 0.5
F fraction ¦ \frac{2}{3} ¦ -\frac{2}{3}
T fraction ¦ ¾ ¦ 0.75
T latex-frac ¦ \frac{7}{3} ¦ \dfrac{7}{3}
T latex-frac ¦ \frac{17}{3} ¦ \frac{17}3
T latex-frac ¦ \frac{a}{b} ¦ a/b
T latex-frac ¦ \frac{\frac{1}{2}}{3} ¦ \frac{1}{6}
F latex-frac ¦ \frac{1}{6} ¦ \frac16\pi
T latex-frac ¦ \frac{x+1}{2} ¦ \frac{1}{2}x+\frac12
T latex-frac ¦ \frac{5}{\sqrt{5}} ¦ \sqrt{5}
T mixed number ¦ 2\frac{3}{4} ¦ 2.75
T mixed number ¦ 2\frac{3}{4} ¦ 11/4
T mixed number ¦ -1\frac{1}{2} ¦ -1.5
F mixed number ¦ 2\frac{3}{4} ¦ \frac{6}{4}
T mixed number ¦ 5 2/3 ¦ \frac{17}{3}
T surd ¦ 3\sqrt{2} ¦ \sqrt{18}
T surd ¦ \frac{\sqrt{3}}{3} ¦ \frac{1}{\sqrt{3}}
T surd ¦ \sqrt{3+2\sqrt{2}} ¦ 1+\sqrt{2}
F surd ¦ 3\sqrt{2} ¦ 2\sqrt{3}
T surd ¦ \sqrt[3]{-8} ¦ -2
T surd ¦ 5^{1/2} ¦ √5
T surd ¦ \frac{\sqrt{6}-\sqrt{2}}{4} ¦ \sin 15^\circ
T surd ¦ \sqrt{3} ¦ sqrt(3)
T surd ¦ \frac{1+\sqrt{5}}{2} ¦ \frac{2}{\sqrt{5}-1}
F surd ¦ \frac{1+\sqrt{5}}{2} ¦ \frac{1-\sqrt{5}}{2}
T pi ¦ 12\pi ¦ 12 \pi
T pi ¦ \frac{5\pi}{6} ¦ \frac{5}{6}\pi
T pi ¦ 2π ¦ 2\pi
F pi ¦ 2\pi ¦ 2\pi^2
F pi ¦ 100\pi ¦ 314
T pi ¦ 25\pi - 48 ¦ -48+25\pi
T pi ¦ \frac{\pi}{4} ¦ \arctan 1
T polynomial ¦ (x-1)(x+1) ¦ x^2-1
T polynomial ¦ x^3+3x^2+3x+1 ¦ (x+1)^3
F polynomial ¦ x^2-1 ¦ x^2+1
T polynomial ¦ 2xy ¦ 2yx
T polynomial ¦ n(n+1)/2 ¦ \frac{n^2+n}{2}
T polynomial ¦ e^{2x} ¦ (e^x)^2
T polynomial ¦ \sin(2x) ¦ 2\sin x\cos x
T polynomial ¦ \ln(x^2 y) ¦ 2\ln x+\ln y
T polynomial ¦ 3+4i ¦ 4i+3
F polynomial ¦ 3+4i ¦ 3-4i
T polynomial ¦ \frac{1}{1+i} ¦ \frac{1-i}{2}
T polynomial ¦ f(x) = 2x+3 ¦ 2x+3
T polynomial ¦ x^{2} - 4 x + 4 ¦ (x - 2)^{2}
F polynomial ¦ x+1 ¦ x
T polynomial ¦ \binom{n}{2} ¦ \frac{n(n-1)}{2}
T polynomial ¦ \sqrt{a}\sqrt{b} ¦ \sqrt{ab}
F polynomial ¦ |x| ¦ x
T polynomial ¦ \log_3 81 ¦ 4
T polynomial ¦ \cos^2 x + \sin^2 x ¦ 1
T polynomial ¦ 2^{n}-n-1 ¦ -1-n+2^n
T tuple ¦ (3, 4) ¦ \left(3,4\right)
F tuple ¦ (3, 4) ¦ (4, 3)
T tuple ¦ (1/2, -3) ¦ (0.5, -3)
F tuple ¦ (1,2,3) ¦ (1,2)
T tuple ¦ (x,y)=(1,2) ¦ (1,2)
T tuple ¦ \left(2, \frac{5\pi}{3}\right) ¦ (2, 5\pi/3)
F tuple ¦ (100,200) ¦ 100200
T set ¦ \{1,2\} ¦ \{2,1\}
T set ¦ 2, -3 ¦ -3, 2
F set ¦ 2, -3 ¦ 2, 3
T set ¦ x=1, x=-1 ¦ \pm 1
T set ¦ \pm\sqrt{2} ¦ \sqrt{2}, -\sqrt{2}
T set ¦ $3$,$7$ ¦ 7, 3
T set ¦ 1 \text{ or } 4 ¦ 1, 4
F set ¦ 1,2,3 ¦ 1,2
T set ¦ (1,2),(2,1) ¦ (2,1), (1,2)
F set ¦ (1,2),(2,1) ¦ (1,2)
T set ¦ \frac{1\pm\sqrt{5}}{2} ¦ \frac{1+\sqrt{5}}{2}, \frac{1-\sqrt{5}}{2}
T set ¦ \emptyset ¦ \varnothing
T interval ¦ (-\infty,3] ¦ x \le 3
T interval ¦ [1,5) ¦ 1 \le x < 5
F interval ¦ [1,5) ¦ (1,5)
F interval ¦ (1,5) ¦ [1,5]
T interval ¦ (-\infty,-2)\cup(2,\infty) ¦ x<-2 \text{ or } x>2
T interval ¦ x>3 ¦ 3<x
F interval ¦ x>3 ¦ x\ge 3
T interval ¦ (2,3) \cup (0,1) ¦ (0,1)\cup(2,3)
T interval ¦ a \in (0, \frac12] ¦ (0, 0.5]
T interval ¦ (-\infty,\infty) ¦ \mathbb{R}
T equation ¦ y=3x-2 ¦ 3x - y = 2
F equation ¦ y=3x-2 ¦ y=3x+2
T equation ¦ x=7 ¦ 7
T equation ¦ \frac{x^2}{4}+\frac{y^2}{9}=1 ¦ 9x^2+4y^2=36
F equation ¦ y=-1 ¦ x=-1
T equation ¦ x+y=5 ¦ y = 5 - x
T equation ¦ S_{ABC} = 12 ¦ 12
T equation ¦ E=mc^2 ¦ mc^2
F equation ¦ x^2=4 ¦ 4
T matrix ¦ \begin{pmatrix}1&2\\3&4\end{pmatrix} ¦ \begin{bmatrix}1&2\\3&4\end{bmatrix}
F matrix ¦ \begin{pmatrix}1&2\\3&4\end{pmatrix} ¦ \begin{pmatrix}1&3\\2&4\end{pmatrix}
T matrix ¦ \begin{pmatrix}0.5\\2\end{pmatrix} ¦ \begin{pmatrix}\frac12\\2\end{pmatrix}
F matrix ¦ \begin{pmatrix}1\\2\end{pmatrix} ¦ \begin{pmatrix}1&2\end{pmatrix}
T matrix ¦ \begin{pmatrix}2&0\\0&2\end{pmatrix} ¦ 2\begin{pmatrix}1&0\\0&1\end{pmatrix}
T text/choice ¦ \text{(C)} ¦ (C)
T text/choice ¦ C ¦ \text{C}
F text/choice ¦ C ¦ D
T text/choice ¦ \text{Evelyn} ¦ Evelyn
T text/choice ¦ \text{Evelyn} ¦ \text{evelyn}
F text/choice ¦ \text{Evelyn} ¦ \text{Carla}
T text/choice ¦ \text{Yes} ¦ yes
F text/choice ¦ \text{CBAD} ¦ \text{ABCD}
T text/choice ¦ \text{B,C} ¦ B, C
F text/choice ¦ \text{October 30} ¦ \text{November 30}
T text/choice ¦ 3:4 ¦ \frac{3}{4}
F text/choice ¦ 1:2:3 ¦ 1:3:2
F text/choice ¦ 30 ¦ \text{October 30}
T multiple-boxed ¦ 9 ¦ raw:First \boxed{3}. Then \boxed{9}.
F multiple-boxed ¦ 3 ¦ raw:First \boxed{3}. Then \boxed{9}.
T multiple-boxed ¦ 9 ¦ raw:We have \boxed{9}. (I was told to put the answer in \boxed{}.)
T multiple-boxed ¦ 9 ¦ raw:So \boxed{9}, unlike "put your final answer within \boxed{...}".
T multiple-boxed ¦ 9 ¦ raw:\boxed{9}<|im_end|>\boxed{8}
F multiple-boxed ¦ 8 ¦ raw:\boxed{9}</s> no, \boxed{8}
T multiple-boxed ¦ 8 ¦ raw:<think>\boxed{9}</think> The result is \boxed{8}.
T boxed-nested ¦ \sqrt{\frac{1}{2}} ¦ raw:\[\boxed{\sqrt{\frac{1}{2}}}\]
T boxed-nested ¦ 7 ¦ raw:\fbox{7}
T boxed-nested ¦ 7 ¦ raw:$\boxed{\mathrm{7}}$ is it
T boxed-nested ¦ 7 ¦ raw:\boxed 7
T boxed-nested ¦ 12 ¦ raw:\boxed{x = 12}
F no-answer ¦ 7 ¦ raw:I give up.
F no-answer ¦ 7 ¦ raw:\boxed{7
F no-answer ¦ 5 ¦ raw:\boxed{\text{no solution}}
F no-answer ¦ 0 ¦ raw:\boxed{?}
T integer ¦ 18 ¦ raw:She makes 9 * 2 = $<<9*2=18>>18 every day.\n#### 18
T integer ¦ 18 ¦ raw:The answer is 18.
T integer ¦ 18 ¦ raw:The answer is: $18$. Hope this helps!
T integer ¦ 18 ¦ raw:So there are 18 eggs.
T integer ¦ 18 ¦ raw:**Answer:** 18
T integer ¦ 18 ¦ raw:The final answer is 18<|endoftext|>17
T integer ¦ 2400 ¦ raw:In total they pay $2,400.
T latex-frac ¦ \frac{3}{4} ¦ raw:Therefore the probability is \frac{3}{4}.
T latex-frac ¦ \frac{3}{4} ¦ raw:Therefore the probability is $\frac{3}{4}$.
T fraction ¦ \frac{3}{4} ¦ raw:so we get 3/4
T text/choice ¦ C ¦ raw:The answer is (C).
T text/choice ¦ C ¦ raw:The correct option is C.
T equation ¦ x=4 ¦ raw:Solving gives x = 4.
T pathological ¦ 2^{4950} ¦ 2^{4950}
F pathological ¦ 2^{4950} ¦ 2^{4951}
F pathological ¦ 1 ¦ 2^{2^{2^{2^{2^{2}}}}}
F pathological ¦ 1 ¦ \frac{0}{0}
F pathological ¦ 1 ¦ __import__('os').system('true')
F pathological ¦ 10^{100} ¦ 10^{100}+1
T pathological ¦ 10^{100} ¦ 10 \cdot 10^{99}
F pathological ¦ 0 ¦ \tan(\pi/2)
F pathological ¦ 0 ¦ e^{-1000}
F pathological ¦ 10^{50} ¦ \sqrt{10^{100}+1}
F pathological ¦ 1 ¦ \lim_{n\to\infty} n
T integer ¦ 36 ¦ 6^2
T integer ¦ 12 ¦ 12.
T integer ¦ 12 ¦ \text{12 apples}
T integer ¦ 1000000 ¦ 1{,}000{,}000
F integer ¦ 1 ¦ 1!+1
T integer ¦ 1/8 ¦ 2^{-3}
F integer ¦ 24 ¦ 42
T integer ¦ 11011_2 ¦ 11011_{2}
T integer ¦ 0 ¦ 0.0
T decimal ¦ 0.75 ¦ 75 \times 10^{-2}
T decimal ¦ 3.14 ¦ 3.140
F decimal ¦ 3.14 ¦ 3.141
T decimal ¦ 12.5 ¦ 12 \frac{1}{2}
T decimal ¦ 1.2 \times 10^{-3} ¦ 0.0012
T currency/thousands ¦ 45000 ¦ \$45{,}000
T currency/thousands ¦ \$3.54 ¦ 3.54
T currency/thousands ¦ 1,000,000 ¦ 1 000 000
F currency/thousands ¦ 1,000 ¦ 10000
T currency/thousands ¦ 75 ¦ 75 cents
T percent ¦ 8\% ¦ 8
F percent ¦ 8\% ¦ 80\%
T percent ¦ 62.5\% ¦ 62.5 \text{ percent}
T percent ¦ \frac{1}{4} ¦ 25\%
T units ¦ 864 \mbox{ inches}^2 ¦ 864 \text{ square inches}
T units ¦ 5 ¦ 5\text{ m/s}
T units ¦ 5 ¦ 5 \, \mathrm{m/s^2}
T units ¦ 120^\circ ¦ 120 \text{ degrees}
T units ¦ 10 ¦ 10\ \text{cm}^3
T units ¦ 2.5 ¦ 2.5 hours
F units ¦ 10 \text{ cm} ¦ 100 \text{ cm}
T fraction ¦ 7/3 ¦ 2\frac{1}{3}
T fraction ¦ \frac{3}{5} ¦ .6
T latex-frac ¦ \frac{1}{x+1} ¦ 1/(x+1)
T latex-frac ¦ -\frac{5}{7} ¦ \frac{-5}{7}
T latex-frac ¦ \frac{2\pi}{3} ¦ \frac23\pi
T mixed number ¦ 1\frac{4}{5} ¦ 9/5
T surd ¦ 5\sqrt[3]{4} ¦ \sqrt[3]{500}
T surd ¦ \sqrt{75} ¦ 5\sqrt3
F surd ¦ \sqrt{75} ¦ 3\sqrt5
T surd ¦ \frac{2}{7}\sqrt{53} ¦ \frac{2\sqrt{53}}{7}
T surd ¦ 2^{-2/3} ¦ \frac{1}{\sqrt[3]{4}}
T pi ¦ \frac{20000}{\pi} ¦ 20000/\pi
T pi ¦ 288\pi ¦ 288 pi
T polynomial ¦ (a+5)(b+2) ¦ ab+2a+5b+10
T polynomial ¦ -\frac{x}{2} ¦ -0.5x
F polynomial ¦ x^2y ¦ xy^2
T polynomial ¦ \frac{\log 2}{\log 2-\log 3} ¦ \frac{\ln 2}{\ln 2 - \ln 3}
T polynomial ¦ 2^{n}-1 ¦ f(n) = 2^n - 1
T polynomial ¦ \cot x ¦ \frac{\cos x}{\sin x}
T polynomial ¦ 6+9i ¦ 9i + 6
T polynomial ¦ \lfloor \sqrt{n} \rfloor ¦ \left\lfloor\sqrt n\right\rfloor
T tuple ¦ (2,1) ¦ (x, y) = (2, 1)
T tuple ¦ (1,-16,-4,43) ¦ (1, -16, -4, 43)
F tuple ¦ (2,1) ¦ [2,1]
T tuple ¦ \left(-\frac12,3\right) ¦ (-0.5, 3)
T set ¦ \{1\pm\sqrt{5},-2\} ¦ \{-2, 1+\sqrt5, 1-\sqrt5\}
T set ¦ 3, 5, 7 ¦ \{3,5,7\}
T set ¦ x = 2 \text{ or } x = -3 ¦ -3, 2
F set ¦ x = 2 \text{ or } x = -3 ¦ 2
F set ¦ \{1,2,3\} ¦ \{1,2,4\}
T interval ¦ (-\infty, 2) \cup (3, \infty) ¦ x < 2 \text{ or } x > 3
T interval ¦ x \in [-2,7] ¦ -2 \le x \le 7
T interval ¦ (0,\infty) ¦ x>0
F interval ¦ (0,\infty) ¦ [0,\infty)
F interval ¦ x>0 ¦ x<0
T interval ¦ k \geqslant 2 ¦ [2, \infty)
T equation ¦ y=\frac{1}{2}x+3 ¦ x-2y+6=0
T equation ¦ 5x - 7y + 11z + 4 = 0 ¦ -5x+7y-11z-4=0
F equation ¦ 5x - 7y + 11z + 4 = 0 ¦ 5x-7y+11z-4=0
T equation ¦ (x-1)^2+(y+2)^2=9 ¦ x^2-2x+y^2+4y-4=0
T equation ¦ b = -4 ¦ -4
T matrix ¦ \begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix} ¦ \begin{bmatrix} 0.2 \\ -3.6 \end{bmatrix}
F matrix ¦ \begin{pmatrix} 1 \\ 2 \end{pmatrix} ¦ \begin{pmatrix} 1 \\ 2 \\ 3 \end{pmatrix}
T matrix ¦ \begin{pmatrix}-7 \\ 16 \\ 5\end{pmatrix} ¦ \begin{pmatrix}-7\\16\\5\\ \end{pmatrix}
T text/choice ¦ \text{east} ¦ \text{East}
T text/choice ¦ D ¦ \mathbf{(D)}
F text/choice ¦ \text{(A)} ¦ \text{(B)}
T text/choice ¦ \text{A,C} ¦ A and C
T text/choice ¦ \text{neither} ¦ neither
F text/choice ¦ \text{even} ¦ \text{neither}
T text/choice ¦ 1:4 ¦ 1 : 4
T text/choice ¦ \text{Saturday} ¦ Saturday
F no-answer ¦ 3 ¦ \text{I don't know}
T multiple-boxed ¦ 12 ¦ raw:We get \boxed{11}? No: \[ \boxed{12}. \]
T multiple-boxed ¦ 4 ¦ raw:<|im_start|>assistant\nSo \boxed{4}<|im_end|>
T boxed-nested ¦ \frac{1}{2^{n}} ¦ raw:Thus $P = \boxed{\frac{1}{2^{n}}}$.
T boxed-nested ¦ 5 ¦ raw:\boxed{\text{5}}
T integer ¦ 27 ¦ raw:Therefore, the final answer is 27 eggs.
T integer ¦ 27 ¦ raw:So x = 27.
T integer ¦ 27 ¦ raw:Hence there are **27** ways.
T integer ¦ 5 ¦ raw:The answer to the problem is therefore $5$.
T fraction ¦ \frac{5}{6} ¦ raw:Thus the probability is 5/6.
T surd ¦ 3\sqrt{2} ¦ raw:so the length is $3\sqrt{2}$ units.
T interval ¦ [2,5) ¦ raw:The answer is $[2, 5)$.
T set ¦ 1,3 ¦ raw:The solutions are $x = 1$ and $x = 3$. The answer is $1, 3$.
T text/choice ¦ B ¦ raw:Therefore, the correct answer is (B).
T text/choice ¦ A ¦ raw:Answer: A
F text/choice ¦ A ¦ raw:Answer: B
F pathological ¦ 1 ¦ 2^{3^{4^{5^{6}}}}
F pathological ¦ 100! ¦ 101!
T pathological ¦ \frac{1}{2004!} ¦ \frac{1}{2004!}
F pathological ¦ 10^{200} ¦ 10^{200}+1
F pathological ¦ 7 ¦ eval('7')
F equation ¦ x=5 ¦ x=x
F equation ¦ x+y=5 ¦ x+y=x+y
F equation ¦ y=2x ¦ 0=0
F multiple-boxed ¦ 5 ¦ 5 \text{ or maybe } 7
F multiple-boxed ¦ 5 ¦ 7 \text{ or maybe } 5
F set ¦ 2 ¦ 1, 2, 3
F set ¦ 1, 2 ¦ 1, 2, 3
F integer ¦ 12 ¦ 1 2
F integer ¦ 35 ¦ 5 7
T integer ¦ 14 ¦ \gcd(42, 70)
F integer ¦ 7 ¦ \gcd(42, 70)
T integer ¦ 60 ¦ \operatorname{lcm}(12, 15, 20)
T integer ¦ 9 ¦ \max\{4, 9, -1\}
T integer ¦ -1 ¦ \min(4, 9, -1)
T integer ¦ 13 ¦ 1101 base 2
T integer ¦ 13 ¦ 1101_{\text{two}}
F integer ¦ 13 ¦ 1011_{\text{two}}
T integer ¦ 3 ¦ three
T tuple ¦ (4,-5) ¦ \begin{pmatrix}4\\-5\end{pmatrix}
F tuple ¦ (4,-5) ¦ \begin{pmatrix}-5\\4\end{pmatrix}
T tuple ¦ (4,-5) ¦ \langle 4, -5 \rangle
T matrix ¦ (4,6) ¦ \begin{pmatrix}1\\2\end{pmatrix}+\begin{pmatrix}3\\4\end{pmatrix}
T set ¦ 4, 11 ¦ 4 \text{ and } 11
T set ¦ (p,q)=(5,2);(7,2) ¦ (5,2),(7,2)
T pi ¦ \frac{\pi}{6} ¦ \sin^{-1}\frac12
T decimal ¦ -\sqrt{2} ¦ -1.41421356237
F decimal ¦ -\sqrt{2} ¦ 1.41421356237
T decimal ¦ \frac{3}{11} ¦ 0.\overline{27}
F decimal ¦ \frac{3}{11} ¦ 0.\overline{28}
F pathological ¦ 2 ¦ 10^{160}\sqrt2+1-10^{160}\sqrt2
T pathological ¦ 0 ¦ \sqrt8-2\sqrt2
T polynomial ¦ \sqrt{0} ¦ 0
T text/choice ¦ \text{Mira} ¦ raw:So the tallest of all of them is **Mira**.
T interval ¦ [2,\infty) ¦ raw:The range of $f$ is $[2, \infty)$.
T interval ¦ x \ge -3 ¦ raw:Thus x ≥ -3.
T surd ¦ \frac{\sqrt{3}}{3} ¦ raw:so $\tan 30^\circ = \frac{1}{\sqrt{3}}$.
T integer ¦ 55 ¦ raw:Hence $1^2+2^2+\dots+5^2 = \frac{5 \cdot 6 \cdot 11}{6} = 55$.
T mixed number ¦ 3\frac{1}{4} ¦ raw:Adding, 1½ + 1¾ = 3¼ cups.
T integer ¦ 12 ¦ \text{The answer is 12}
T integer ¦ 55 ¦ raw:We find $m = 46$ and $n = 9$, so $m + n = 55$.
T integer ¦ 12 ¦ a+b+c = 12
F integer ¦ 4 ¦ 2x = 4
F integer ¦ 0 ¦ raw:so the circle is $x^2+y^2-4x = 0$
F equation ¦ x=5 ¦ x+y=5
F equation ¦ x-y=5 ¦ x+y=5
T polynomial ¦ (x-1)(x+1) ¦ raw:It factors: $x^2-1 = (x+1)(x-1)$
F polynomial ¦ (x-1)(x+1) ¦ raw:It factors: $x^2+1 = (x+1)(x-1)^2$
T matrix ¦ \begin{pmatrix}6&0\\0&6\end{pmatrix} ¦ A+8A^{-1} = \begin{bmatrix}6&0\\0&6\end{bmatrix}
T integer ¦ 4210_5 ¦ raw:As $555 = 4 \cdot 125 + 55$, so\n\[555_{10} = 4210_5\]
T polynomial ¦ n^2+n+1 ¦ raw:Therefore the fraction simplifies to n² + n + 1.
F polynomial ¦ n^2+n+1 ¦ raw:Therefore the fraction simplifies to n² − n + 1.
T polynomial ¦ 5x^2-3 ¦ raw:The derivative is 5x² − 3.
F polynomial ¦ 5x^2-3 ¦ raw:The derivative is 5x³ − 3.
T decimal ¦ 0.0000672 ¦ raw:Moving the point, the product is 6.72 × 10⁻⁵.
F decimal ¦ 0.0000672 ¦ raw:Moving the point, the product is 6.72 × 10⁻⁶.
T interval ¦ (-\infty,2)\cup(3,\infty) ¦ raw:So the domain is (−∞, 2) ∪ (3, ∞).
T pi ¦ 2\pi r^2 ¦ raw:So the area is 2πr².
T units ¦ 15 ¦ raw:It then moves at 15 m/s.
T units ¦ 15 ¦ raw:It is slowed by 15 m/s^2.
T units ¦ 20 ¦ raw:She sells 20 a day.
T equation ¦ (x-3)^2+(y+2)^2=25 ¦ raw:the equation is\n\nx² + y² − 6x + 4y − 12 = 0
T set ¦ 1,2 ¦ raw:Thus the solutions are $x = 1$ and $x = 2$.
F set ¦ 2 ¦ raw:Thus the solutions are $x = 1$ and $x = 2$.
T set ¦ 7,4 ¦ raw:She bought $\boxed{7}$ goats and $\boxed{4}$ toys.
F set ¦ 7,4 ¦ raw:She bought $\boxed{7}$ goats and $\boxed{5}$ toys.
T integer ¦ 25 ¦ raw:The side is $\boxed{5}$. The area is $\boxed{25}$.
T set ¦ 19,0,1 ¦ raw:Team E has played 20 games. So x = 19, y = 0, z = 1.
F set ¦ 19,0,1 ¦ x=19,\ y=1,\ z=0
T set ¦ -3,2 ¦ x_1 = 2, x_2 = -3
T percent ¦ \frac12 ¦ \frac{1}{2} \text{ or } 50\%
F percent ¦ \frac12 ¦ \frac{1}{2} \text{ or } 5\%
T integer ¦ 56 ¦ {8 \choose 3}
F integer ¦ 56 ¦ {8 \choose 2}
T units ¦ 12\ \text{kg}\cdot\text{m/s} ¦ 12\ \mathrm{kg\,m/s}
F units ¦ 12\ \text{kg}\cdot\text{m/s} ¦ 13\ \mathrm{kg\,m/s}
T units ¦ 12 ¦ 12\ \text{N}\cdot\text{m}
T units ¦ 1.49e4 ¦ 1.49 \times 10^{4}\ \text{cm}^{-1}
T units ¦ 5 ¦ 5^\circ\text{C}
T text/choice ¦ \text{Carla} ¦ raw:- Ann: 12 laps\n- Ben: 11 laps\n\nThe winner is **Carla**.
F text/choice ¦ \text{Carla} ¦ raw:- Carla: 12 laps\n- Ben: 13 laps\n\nThe winner is **Ben**.
T equation ¦ x^{\prime}+2x=0 ¦ x' + 2x = 0
T polynomial ¦ \begin{cases}x & x>0\\0 & x<0\end{cases} ¦ \begin{cases}x,&x>0\\0,&x<0\end{cases}
F polynomial ¦ \begin{cases}x & x>0\\0 & x<0\end{cases} ¦ \begin{cases}x&x<0\\0&x>0\end{cases}
T latex-frac ¦ \frac12 ¦ \mathbf{\frac{1}{2}}
T text/choice ¦ 3:2 ¦ 3 \text{ to } 2
F text/choice ¦ 3:2 ¦ 2 \text{ to } 3
""".strip().splitlines()


def boxed(answer):
    return "So it is $\\boxed{" + answer + "}$."


def parsed(line):
    head, gold, answer = line.split(" ¦ ")
    response = answer[4:].replace("\\n", "\n") if answer.startswith("raw:") else boxed(answer)
    return head[0] == "T", gold, response


def timed(response, answer):
    started = time.perf_counter()
    result = verdict(response, answer)
    taken = time.perf_counter() - started
    assert taken < SECOND, f"{taken:.2f} s for {response[:60]!r} against {answer[:60]!r}"
    return result


def rows_of(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


# ---------------------------------------------------------------------------------- graded pairs


@pytest.mark.parametrize("line", PAIRS)
def test_pair(line):
    equal, gold, response = parsed(line)
    assert is_correct(response, gold) is equal, extract_answer(response)


@pytest.mark.parametrize("answer, other", [
    (r"A\setminus B", r"B\setminus A"), (r"A\subset B", r"B\subset A"), (r"p\to q", r"q\to p"),
    (r"f\circ g", r"g\circ f"), (r"P(A\mid B)", r"P(B\mid A)")])
def test_what_is_not_known_is_not_a_product(answer, other):
    assert is_correct(boxed(answer), answer) and not is_correct(boxed(other), answer)


def test_own_pairs():
    """940 pairs in the manner of models on real problems, written without regard to the grader.

    Rules were mended after each of the parts a to d was graded: 253 of the last 260 were right at
    first.
    """
    wrong = [row["id"] for row in rows_of(SAMPLE.with_name("grading_own.jsonl"))
             if is_correct(row["response"], row["gold"]) != row["equal"]]
    assert len(wrong) <= 5, wrong


@pytest.mark.parametrize("row", rows_of(SAMPLE), ids=lambda row: row["id"])
def test_sample_of_the_graded_cases(row):
    assert (timed(row["response"], row["gold"]) is True) is row["equal"]


# ------------------------------------------------------------------------------------- extraction


@pytest.mark.parametrize("response, answer", [
    (r"\boxed{1} then \boxed{2}", "2"),
    (r"\boxed{1} then \boxed{}", "1"),
    (r"\boxed{1}, as asked in `\boxed{your answer}`", "1"),
    (r"\boxed{1} and \boxed{2", "1"),
    (r"\fbox{3}", "3"),
    (r"\boxed{\boxed{4}}", "4"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
    (r"\boxed{5}. The answer is 6.", "5"),
    ("The answer is 6.\n#### 7", "6"),
    ("8 apples\n#### 7\nso 9", "7"),
    ("#### 1. Setting up\n#### 7", "7"),
    ("from 8 to 9 in all", "9"),
    (r"\boxed{1}<|im_end|>\boxed{2}", "1"),
    ("The answer is 1</s>2", "1"),
    (r"\boxed{1}<|im_start|>user \boxed{2}", "1"),
    (r"<|im_start|>assistant \boxed{1}<|im_end|>", "1"),
    (r"<think>\boxed{1}</think>\boxed{2}", "2"),
    (r"<think>\boxed{1}</think>", None),
    (r"<think>\boxed{1} but wait", None),
    (r"a thought \boxed{1}</think> The answer is 2.", "2"),
    ("I do not know", None),
    ("", None),
    ("The answer is", None),
])
def test_extraction(response, answer):
    assert extract_answer(response) == answer


# ------------------------------------------------------------------------------------- properties

ANSWERS = sorted({parsed(line)[1] for line in PAIRS})


def test_an_answer_equals_itself_whatever_the_spacing_and_dollars():
    for gold in ANSWERS:
        for response in boxed(gold), boxed(" " + gold + r"\, "), boxed("$" + gold + "$"):
            assert is_correct(response, gold), response
            assert is_correct(response, f"${gold}$"), response


def test_symmetry():
    golds = [parsed(line)[1] for line in PAIRS]
    answers = [extract_answer(parsed(line)[2]) or "" for line in PAIRS]
    for gold, answer in [*zip(golds, answers), *zip(golds, golds[1:])]:
        is_chain = re.search(r"[-+].*=", answer) and "=" not in gold  # m + n = 55 answers 55 only
        if answer and "boxed" not in answer and not is_chain:
            one_way, other_way = is_correct(boxed(gold), answer), is_correct(boxed(answer), gold)
            assert one_way == other_way, (gold, answer)


@pytest.mark.parametrize("shape", [
    "{}", "-{}", "{}.0", r"\frac{{{}}}{{7}}", "({}, 2)", r"\{{{}, 2\}}", r"{}\pi", "x = {}",
    r"{}\%", r"{} \text{{ cm}}", "x^2 + {}", r"\sqrt{{{}}}", "y = {}x", "[0, {})", "x > {}",
    r"\begin{{pmatrix}}{}\\0\end{{pmatrix}}", r"2^{{{}}}", "{}!",
])
def test_a_number_moved_by_one_is_never_equal(shape):
    rng = random.Random(0)
    for number in [3, 12, 999, *(rng.randrange(3, 1300) for _ in range(8))]:
        assert is_correct(boxed(shape.format(number)), shape.format(number))
        assert not is_correct(boxed(shape.format(number + 1)), shape.format(number))


@pytest.mark.parametrize("digits", [20, 500, 5_000, 1_000_000])
def test_integers_of_any_size_are_compared_exactly(digits):
    number = "7" * (digits - 1) + "8"
    assert timed(boxed(number), "0" + number) is True
    assert timed(boxed(number), number[:-1] + "9") is False
    assert timed(boxed("-" + number), number) is False


def test_random_strings_raise_nothing_and_take_no_time():
    rng = random.Random(0)
    pieces = [
        *"0123456789xyzn+-*/^_=<>(){}[]|!%,.;:&' $\n~", "\\", r"\frac", r"\sqrt", "{", "}",
        r"\boxed{", r"\pi", r"\sin", r"\log", r"\pm", r"\cup", r"\le", r"\in", r"\infty", r"\text{",
        r"\left(", r"\right]", r"\begin{pmatrix}", r"\end{pmatrix}", r"\\", r"\{", r"\}", r"\binom",
        r"\lfloor", r"\overline{", r"\circ", "answer is ", "####", "<think>", "</think>", "or",
        "\0", "\ud800", "\u202e", "½", "²", "٣", "−", "√", "千", "^{", "_{", "10^", "!", "e", "i",
    ]
    for _ in range(20_000):
        a, b = ("".join(rng.choices(pieces, k=rng.randrange(1, 16))) for _ in range(2))
        timed(a if rng.random() < 0.5 else "\\boxed{" + a + "}", b)


# ------------------------------------------------------------------------------------- harm

DEEP = 100_000
HARM = {
    "tower": "9^9^9^9", "python's power": "10**10**10", "factorial": "99999999!",
    "factorial of a million": "(10^6)!", "factorial of a factorial": "((10^6)!)!",
    "expansion": "(1+x)^{100000}", "binomials": "*".join(f"(x+{i})^{{{i}}}" for i in range(1, 150)),
    "big products": "*".join(f"{i}^{{1500}}" for i in range(2, 200)),
    "harmonic": "+".join(f"1/{i}" for i in range(1, 400)),
    "brackets": "(" * DEEP + "7" + ")" * DEEP, "fewer brackets": "(" * 900 + "7" + ")" * 900,
    "fractions": r"\frac{1}{" * DEEP + "7" + "}" * DEEP,
    "roots": r"\sqrt{" * DEEP + "7" + "}" * DEEP,
    "fewer roots": r"\sqrt{" * 300 + "7" + "}" * 300, "braces": "{" * DEEP + "7" + "}" * DEEP,
    "minus signs": "-" * DEEP + "1x", "carets": "2" + "^2" * 900, "sines": r"\sin " * 400 + "x",
    "tuple": "(" + ",".join(map(str, range(500))) + ")", "set": ",".join(map(str, range(2, 600))),
    "set of roots": r"\{" + ",".join(rf"\sqrt{{{i}}}" for i in range(200)) + r"\}",
    "nested sets": r"\{" * 30 + r"\pm 1" + r"\}" * 30, "logarithm": r"\log(9^{9^{9^{9}}})",
    "matrix": r"\begin{pmatrix}" + r"\\".join(["1&2&3&4&5&6"] * 99) + r"\end{pmatrix}",
    "pole": r"\tan(\pi/2)", "huge angle": r"\tan(10^{10^{10}})", "0/0": r"\frac{0}{0}",
    "1/0": "1/0",
    "x^x^x": "x^{x^{x}}", "factorials": "*".join(f"(x+{i})!" for i in range(150)),
    "gamma": "+".join(f"({i}/7)!" for i in range(200)), "exponent": "1e" + "9" * 1900,
    "binomial": r"\binom{10^{9}}{5 \cdot 10^{8}}", "exp": "e^{e^{e^{e^{e}}}}", "commas": "1," * 900,
    "bars": "|" * 1900 + "x", "relations": "x<" * 900 + "1", "words": "apple " * 300,
    "text": r"\text{" * 300, "period": r"0.\overline{" + "3" * 1900 + "}", "nul": "\0" * 999,
    "surrogates": "\ud800" * 999,
    "nested boxes": r"\boxed{" * 30_000 + "7" + "}" * 30_000, "products": "9^{2000}*" * 199 + "2",
    "word list": ",".join(f"abcd{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(280)),
    "equations": ",".join(f"{i}x+y=3" for i in range(220)), "base": "1" * 1900 + "_2",
    "pairs": ",".join(f"({i},{i + 1})" for i in range(180)), "gcd": r"\gcd(10^{10^{10}},3)",
    "percent list": ",".join(rf"{i}\%" for i in range(280)), "answers": "answer is " * 20_000,
    "percents": "5" + "%" * 999, "backslashes": "\\" * 100_000,
    "names": "\\a" * 900 + "=", "boxes": r"\boxed{1} and " * 20_000,
    "factorial signs": "5" + "!" * 999,
}


@pytest.mark.parametrize("name", HARM)
def test_harm_is_over_soon(name):
    answer = HARM[name]
    for gold in "3", answer, answer + "+1":
        for response in boxed(answer), answer:
            timed(response, gold)
    assert timed(boxed(answer), "3") is not True


def test_a_tower_equals_itself():
    assert is_correct(boxed("9^{9^{9^{9}}}"), "9^{9^{9^{9}}}")


def test_what_is_too_large_or_undefined_is_undecided():
    assert verdict(boxed("9^{9^{9^{9}}}"), "1") is None
    assert verdict(boxed(r"\frac{1}{0}"), "1") is None
    assert verdict(boxed("2"), "1") is False


def test_same_verdicts_in_threads_with_a_small_stack_and_deep_in_the_stack():
    pairs = [parsed(line)[:0:-1] for line in PAIRS[::3]] + [(boxed(HARM["brackets"]), "7")]
    deep = ["2" + "^2" * 900, "2" + "^x" * 900, r"\sqrt{" * 280 + "x" + "}" * 280, "-" * 999 + "x",
            r"\sin " * 390 + "x", r"\{" * 600 + "x" + r"\}" * 600, "(1," * 600 + "1" + ")" * 600]
    pairs += [(boxed(text), text.replace("x", "y")) for text in deep]  # compared to the bottom
    expected = [verdict(*pair) for pair in pairs]
    found = []
    before = threading.stack_size(128 * 1024)
    try:
        threads = [threading.Thread(
            target=lambda: found.append([verdict(*pair) for pair in pairs])) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.stack_size(before)
    assert found == [expected] * 4

    def deeper(levels):
        return deeper(levels - 1) if levels else verdict(boxed("x^{2^{3}}+(((1)))"), "1+x^8")

    assert deeper(500) is True
    assert deeper(850) in (True, None)


def test_the_depth_is_bounded_whatever_python_allows():
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        assert verdict(boxed("(" * 900 + "7" + ")" * 900), "7") is not True
    finally:
        sys.setrecursionlimit(limit)


def test_nothing_that_executes_is_called():
    tree = ast.parse(Path(verify.__file__).read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} - {"compile"}
    banned = "eval exec compile open sympify parse_expr lambdify simplify mpmathify __import__"
    assert not names & {*banned.split()}
    # the one getattr is called with names of a table, never with text from outside
    ours = {*verify._OPERATIONS, "call"}
    names = {function.__name__ for function in verify._FUNCTIONS.values()} - ours
    assert names <= set(dir(verify._work.contexts[0]))


@pytest.mark.parametrize("gold, readable", [
    ("5", True), (r"\$5", True), ("$69$,$84$", True), ("$221,$8$", False), (r"a+$ $b", False),
    ("", False), ("$", False), (r"\frac{1}{2", False), (r"\{1\}", True), ("(0,1]", True),
])
def test_broken_golds(gold, readable):
    assert is_readable(gold) is readable
